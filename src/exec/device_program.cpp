#include "exec/device_program.h"

#include <fmt/format.h>

#include "exec/host_call.h"
#include "exec/residency.h"
#include "exec/trace_marks.h"
#include "graph/evaluate.h"
#include "graph/op_def.h"
#include "sharing/turn.h"
#include "treadle/error.h"

namespace treadle::exec {
namespace {

/// Plain bytes, which a device's memory can hold.
bool is_plain(const Datum& datum) { return datum.is_tensor() && datum.tensor().dtype() != DType::string; }

}  // namespace

class DeviceRun {
 public:
  DeviceRun(DeviceProgram& owner, const RunControl& control)
      : owner_(owner),
        program_(owner.program_),
        stream_(*owner.stream_),
        control_(control),
        frame_(program_),
        values_(program_.slots().size()) {
    evaluator_.pool = control.pool;
    evaluator_.run_id = control.run_id;
    evaluator_.stop_requested = [this] { return control_.stopping(); };
  }

  void run(std::span<const Datum> feeds, std::span<Datum> outputs) {
    // The frame checks the feeds, and finds the binding.
    frame_.start(feeds, {}, control_);
    arena_ = allocate_bytes(binding().offsets().arena_bytes);
    Resident resident(owner_.residency_.get(), binding(), arena_->data(), control_);
    for (size_t i = 0; i < feeds.size(); ++i) {
      int32_t slot = program_.input_slots()[i];
      if (placement(slot) != Placement::known) set(slot, feeds[i]);
    }
    for (int32_t slot : program_.preallocated()) set_memory(slot, program_.slots()[index(slot)].dtype, binding().shape(slot));
    {
      sharing::Turn turn(control_.job, control_.recorder, control_.interruption());
      for (size_t i = 0; i < program_.instructions().size(); ++i) execute(i, turn);
    }
    for (size_t k = 0; k < outputs.size(); ++k) {
      if (owner_.residency_) owner_.residency_->before_reading(program_.output_slots()[k]);
      Datum found = value(program_.output_slots()[k]);
      // Strings may be a constant's or a feed's, which are not to be handed out under another name.
      outputs[k] = is_plain(found) ? to_host(found.tensor()) : found.is_tensor() ? Datum(found.tensor().clone()) : found;
    }
    wait();
  }

 private:
  // What the run holds in the device's memory goes at its end, however it ends.
  struct Resident {
    Resident(Residency* given, const Binding& binding, std::byte* arena, const RunControl& control) : residency(given) {
      if (residency) residency->begin(binding, arena, control);
    }
    ~Resident() {
      if (residency) residency->end();
    }
    Resident(const Resident&) = delete;
    Resident& operator=(const Resident&) = delete;
    Residency* residency;
  };

  static size_t index(int32_t slot) { return static_cast<size_t>(slot); }
  const Binding& binding() const { return frame_.binding(); }
  Placement placement(int32_t slot) const { return program_.slots()[index(slot)].placement; }

  std::shared_ptr<Storage> allocate_bytes(size_t bytes) {
    return owner_.residency_ ? owner_.device_->allocate_anywhere(bytes) : owner_.device_->allocate(bytes);
  }
  void place(int32_t slot, const Datum& datum, bool from_host) {
    if (owner_.residency_ && is_plain(datum))
      owner_.residency_->add(slot, static_cast<std::byte*>(datum.tensor().raw()), datum.tensor().size_bytes(), from_host);
  }

  Tensor allocate(DType dtype, const Shape& shape) {
    std::shared_ptr<Storage> storage = allocate_bytes(size_bytes(dtype, shape.num_elements()));
    blocks_[storage.get()] = storage;
    return Tensor(dtype, shape, std::move(storage));
  }

  void set_memory(int32_t slot, DType dtype, const Shape& shape) {
    values_[index(slot)] = allocate(dtype, shape);
    place(slot, values_[index(slot)], /*from_host=*/false);
  }

  void wait() {
    stream_.synchronize();
    in_flight_.clear();
  }

  Tensor to_device(const Tensor& tensor) {
    Tensor source = tensor.contiguous();
    Tensor copy = allocate(source.dtype(), source.shape());
    stream_.copy(copy.raw(), source.raw(), source.size_bytes(), CopyKind::host_to_device);
    in_flight_.push_back(source);  // the copy reads it later
    return copy;
  }

  Tensor to_host(const Tensor& tensor) {
    Tensor copy(tensor.dtype(), tensor.shape());
    stream_.copy(copy.raw(), tensor.raw(), tensor.size_bytes(), CopyKind::device_to_host);
    wait();
    return copy;
  }

  bool on_device(const Tensor& tensor) const {
    auto found = blocks_.find(tensor.storage().get());
    return found != blocks_.end() && !found->second.expired();
  }

  void set(int32_t slot, const Datum& datum) {
    const bool copied = is_plain(datum) && !on_device(datum.tensor());
    values_[index(slot)] = copied ? Datum(to_device(datum.tensor())) : datum;
    place(slot, values_[index(slot)], copied);
  }

  // The value where the device has it: in its memory, or on the host if only the host can hold it.
  Datum value(int32_t slot) {
    const Slot& info = program_.slots()[index(slot)];
    auto viewed = [&](const Datum& root) -> Datum {
      if (!root.is_tensor() || info.root == slot) return root;
      return whole_as(root.tensor(), info.dtype, binding().shape(slot));
    };
    switch (info.placement) {
      case Placement::feed:
      case Placement::held: return viewed(values_[index(info.root)]);
      case Placement::known:
        if (!values_[index(slot)].defined()) set(slot, binding().known(slot));
        return values_[index(slot)];
      case Placement::constant: return viewed(constant(info.root));
      case Placement::arena: break;
    }
    const Shape& shape = binding().shape(slot);
    std::byte* data = arena_->data() + binding().offsets().offsets[static_cast<size_t>(info.buffer)];
    return Tensor(info.dtype, shape, Storage::lend(data, size_bytes(info.dtype, shape.num_elements())));
  }

  Datum constant(int32_t root) {
    const Datum& source = program_.constant(root);
    if (!is_plain(source)) return source;
    auto [found, is_new] = owner_.constants_.try_emplace(root);
    if (is_new) found->second = to_device(source.tensor());
    if (is_new) place(root, found->second, /*from_host=*/true);
    blocks_[found->second.storage().get()] = found->second.storage();
    return found->second;
  }

  void declare(const Datum& datum, Access access, const std::string& name) {
    if (!is_plain(datum)) return;
    if (size_t bytes = datum.tensor().size_bytes(); bytes > 0) stream_.check_access(datum.tensor().raw(), bytes, access, name);
  }

  void execute(size_t position, sharing::Turn& turn) {
    const Instruction& instruction = program_.instructions()[position];
    if (instruction.is_yield) throw Error(ErrorCode::invalid_argument, "the graph stops at a Yield; run it as a partial run");
    try {
      control_.check();
      if (turn.has_duty()) turn.before_node(binding().hint(position));
      stream_.set_gives_way(turn.gives_way() ? std::function<void()>([this] { control_.check(); }) : nullptr);
      if (owner_.residency_) {
        for (int32_t slot : program_.operands(instruction))
          if (slot >= 0 && placement(slot) == Placement::constant) value(slot);  // copied at its first use
        if (!in_flight_.empty() && owner_.residency_->may_spill()) wait();
        owner_.residency_->before(position);
      }
      const NodeMark mark(*instruction.node);
      if (instruction.dynamic)
        execute_dynamic(instruction);
      else
        execute_static(instruction);
      if (owner_.residency_) owner_.residency_->after(position);
    } catch (Error& error) {
      throw error.add_context(describe(*instruction.node) + ", while running on " + owner_.device_->name());
    }
    // A value may go although nothing that waits has read it: its copy to the device may still be under way.
    if (instruction.num_releases > 0 && !in_flight_.empty()) wait();
    for (uint32_t r = 0; r < instruction.num_releases; ++r) values_[index(program_.releases()[instruction.first_release + r])] = Datum();
  }

  void execute_static(const Instruction& instruction) {
    const auto operands = program_.operands(instruction);
    std::vector<void*> pointers(operands.size(), nullptr);
    std::vector<Datum> keep;  // the work comes later: what it uses must not go before
    for (size_t k = 0; k < operands.size(); ++k) {
      if (operands[k] < 0) continue;
      keep.push_back(value(operands[k]));
      if (!keep.back().is_tensor()) continue;
      pointers[k] = keep.back().tensor().raw();
      declare(keep.back(), k < instruction.num_inputs ? Access::read : Access::write, instruction.node->name);
    }
    std::byte* scratch = nullptr;
    if (instruction.scratch_buffer >= 0) {
      const auto buffer = static_cast<size_t>(instruction.scratch_buffer);
      scratch = arena_->data() + binding().offsets().offsets[buffer];
      if (size_t bytes = binding().offsets().sizes[buffer]; bytes > 0)
        stream_.check_access(scratch, bytes, Access::write, instruction.node->name);
    }
    stream_.enqueue(
        [this, &instruction, scratch, pointers = std::move(pointers), keep = std::move(keep)]() mutable {
          RunContext context(pointers.data(), instruction.num_inputs, scratch, control_.pool, instruction.packed.get());
          context.run_id = control_.run_id;
          instruction.run(binding().state(instruction), context);
        },
        instruction.node->name);
    // An error of the work must name this node; streams that run on would report it at the next one that waits.
    wait();
  }

  void execute_dynamic(const Instruction& instruction) {
    const auto operands = program_.operands(instruction);
    std::vector<Datum> inputs(instruction.num_inputs), outputs;
    std::vector<DType> dtypes(instruction.num_outputs, DType::undefined);
    bool plain = instruction.node->op->control_flow == ControlFlow::none;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (operands[i] < 0) continue;
      inputs[i] = for_node(program_.slots()[index(operands[i])], value(operands[i]));
      plain &= is_plain(inputs[i]);
    }
    for (size_t i = 0; i < dtypes.size(); ++i) {
      int32_t slot = operands[instruction.num_inputs + i];
      if (slot < 0) continue;
      dtypes[i] = program_.slots()[index(slot)].dtype;
      plain &= program_.type(slot).is_tensor() && dtypes[i] != DType::string && dtypes[i] != DType::undefined;
    }
    if (plain) {
      for (const Datum& input : inputs) declare(input, Access::read, instruction.node->name);
      evaluator_.allocate = [this](DType dtype, const Shape& shape) { return allocate(dtype, shape); };
      stream_.enqueue(
          [&] {
            LoopBreakScope stays(nullptr);  // what makes a kernel may hold a lock
            outputs = evaluate(instruction, inputs, dtypes);
          },
          instruction.node->name);
      wait();  // shapes depend on data: the host goes on when it knows them
    } else {
      for (Datum& input : inputs)
        if (is_plain(input)) input = to_host(input.tensor());
      if (instruction.node->op->control_flow != ControlFlow::none) {
        HostCall call(instruction, binding(), control_, std::move(inputs));
        run_control_flow(call);
        outputs = call.take_outputs();
      } else {
        evaluator_.allocate = nullptr;
        outputs = evaluate(instruction, inputs, dtypes);
      }
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      int32_t slot = operands[instruction.num_inputs + i];
      if (slot < 0) continue;
      if (!outputs[i].defined()) throw Error(ErrorCode::internal, fmt::format("output {} was not made", i));
      set(slot, outputs[i]);
    }
  }

  std::vector<Datum> evaluate(const Instruction& instruction, std::span<const Datum> inputs, std::span<const DType> dtypes) {
    return evaluate_node(*instruction.node, *instruction.kernel, instruction.packed.get(), inputs, dtypes, evaluator_);
  }

  DeviceProgram& owner_;
  const Program& program_;
  Stream& stream_;
  const RunControl control_;
  Frame frame_;
  Evaluator evaluator_;
  std::shared_ptr<Storage> arena_;
  std::vector<Datum> values_;                                          // per root slot, and per known slot
  std::vector<Tensor> in_flight_;                                      // the host's side of copies
  std::unordered_map<const Storage*, std::weak_ptr<Storage>> blocks_;  // of the device, that this run has seen
};

DeviceProgram::DeviceProgram(const Program& program, std::shared_ptr<Device> device, sharing::JobState* job,
                             std::shared_ptr<DeviceMemoryLimit> limit, std::string spill_folder)
    : program_(program), device_(std::move(device)), stream_(device_->create_stream("compute")) {
  if ((job || limit) && device_->has_bus())
    residency_ = std::make_unique<Residency>(program_, *device_, job, std::move(limit), std::move(spill_folder));
}
DeviceProgram::~DeviceProgram() = default;

void DeviceProgram::run(std::span<const Datum> feeds, std::span<Datum> outputs, const RunControl& control, std::span<const Datum> bound) {
  const RunTurns::Turn turn(turns_, control);
  DeviceRun run(*this, control);
  try {
    run.run(feeds, outputs);
  } catch (...) {
    // Work that is still under way uses the run's memory. Its own error would hide the first one.
    try {
      stream_->synchronize();
    } catch (...) {
    }
    throw;
  }
  for (size_t k = 0; k < bound.size(); ++k) {
    if (!bound[k].defined()) continue;
    Tensor memory = bound[k].tensor();
    if (!outputs[k].is_tensor() || outputs[k].tensor().dtype() != memory.dtype() || outputs[k].tensor().shape() != memory.shape())
      throw Error(ErrorCode::invalid_argument, fmt::format("output \"{}\" is bound to {}, it is {}", program_.graph().output_names[k],
                                                           describe(memory), describe(outputs[k])));
    memory.copy_from(outputs[k].tensor());
    outputs[k] = memory;
  }
}

}  // namespace treadle::exec
