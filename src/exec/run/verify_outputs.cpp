// Verifies a run that writes outputs into the memory of its feeds: states that grow, and bound memory.
#include "exec/run/output_store.h"
#include "exec/verify/verify_plan.h"

namespace treadle::exec {

void OutputStore::verify_over_feeds() const {
  const Program& program = state_.program();
  std::optional<DescribedPlan> plan, by_readiness;
  const std::less<> before;
  for (SlotId output : program.preallocated()) {
    if (!state_.held(output).is_tensor()) continue;  // the run will make the output in separate memory
    const Tensor& made = state_.held(output).tensor();
    for (SlotId input : program.input_slots()) {
      const Datum& fed = state_.held(input);
      const Slot& slot = program.slots()[input];
      if (!fed.is_tensor() || !slot.static_shape || slot.location != LocationKind::feed) continue;
      const Tensor& feed = fed.tensor();
      if (!before(feed.raw(), made.raw() + made.size_bytes()) || !before(made.raw(), feed.raw() + feed.size_bytes())) continue;
      if (!plan) {
        plan = describe_plan(state_.binding());
        if (!needs_order_ && program.parallel()) by_readiness = describe_parallel_plan(state_.binding());
      }
      lay_over(*plan, input, output, feed.raw() - made.raw());
      if (by_readiness) lay_over(*by_readiness, input, output, feed.raw() - made.raw());
    }
  }
  for (const std::optional<DescribedPlan>& verified : {plan, by_readiness})
    if (verified) verify_plan(*verified);
}

}  // namespace treadle::exec
