// A run's outputs may be made in the memory of its feeds: states that grow, and memory that the caller has bound.
#include "exec/frame.h"
#include "exec/verify_plan.h"

namespace treadle::exec {

void Frame::verify_outputs_over_feeds() const {
  std::optional<DescribedPlan> plan;
  const std::less<> before;
  for (int32_t output : program_.preallocated()) {
    const Tensor& made = held_[static_cast<size_t>(output)].tensor();
    for (int32_t input : program_.input_slots()) {
      const Datum& fed = held_[static_cast<size_t>(input)];
      const Slot& slot = program_.slots()[static_cast<size_t>(input)];
      if (!fed.is_tensor() || !slot.static_shape || slot.placement != Placement::feed) continue;
      const Tensor& feed = fed.tensor();
      if (!before(feed.raw(), made.raw() + made.size_bytes()) || !before(made.raw(), feed.raw() + feed.size_bytes())) continue;
      if (!plan) plan = describe_plan(*binding_);
      lay_over(*plan, input, output, feed.raw() - made.raw());
    }
  }
  if (plan) verify_plan(*plan);
}

}  // namespace treadle::exec
