// If, Loop and Scan of a program on devices: the host executes them, on values that lie there.
#pragma once

#include <utility>
#include <vector>

#include "exec/dynamic.h"

namespace treadle::exec {

class HostCall final : public ControlFlowCall {
 public:
  /// @param binding, control  of the run around it.
  /// @param inputs  captures included.
  HostCall(const Instruction& instruction, const Binding& binding, const RunControl& control, std::vector<Datum> inputs)
      : instruction_(instruction), binding_(binding), control_(control), inputs_(std::move(inputs)), outputs_(instruction.num_outputs) {}

  const Instruction& instruction() const override { return instruction_; }
  const Datum& input(int i) const override { return inputs_[static_cast<size_t>(i)]; }
  void set_output(int i, Datum datum) override {
    if (i < static_cast<int>(outputs_.size())) outputs_[static_cast<size_t>(i)] = std::move(datum);
  }
  std::vector<Datum> run_body(size_t b, std::vector<Datum> formal_inputs) override {
    control_.check();  // a body may have no instruction at all
    const Program& body = *instruction_.bodies[b];
    for (const auto& capture : instruction_.node->bodies[b].captures)
      formal_inputs.push_back(inputs_[static_cast<size_t>(instruction_.node->num_formal_inputs + capture.second)]);
    std::vector<Datum> results(body.output_slots().size());
    exec::run(body, formal_inputs, results, control_, {}, binding_.values());
    return results;
  }
  std::vector<Datum> take_outputs() { return std::move(outputs_); }

 private:
  const Instruction& instruction_;
  const Binding& binding_;
  const RunControl& control_;
  std::vector<Datum> inputs_, outputs_;
};

}  // namespace treadle::exec
