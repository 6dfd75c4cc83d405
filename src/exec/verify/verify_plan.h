// Proves of a schedule that every step reads what was written for it. Knows neither the planners' reasons nor the executors' code: it walks
// the steps over bytes that remember which value they belong to.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "exec/verify/described_plan.h"

namespace treadle::exec {

struct Lodgings;

/// Every way in which the plan is wrong, each with the step, its operand, the bytes, and what was expected; at most `most` of them.
///  - What a step reads was written before, and nothing has been written over it since: by the values' bytes within their root, rows with
///    steps included, and by the bytes of the arena, of which whoever writes last has all that its root takes.
///  - A Concat finds its inputs where they belong, or copies them; a Split's outputs lie where its input has them, or are copied.
///  - What is written over an input is the step's own output, whole, where the operator allows it.
///  - Operands fit the memory that they are in; steps from row to row are what the kernel was told, and it asks for them.
///  - Held memory is there when it is used, and let go of once, after its last use; outputs are in memory of their own.
///  - Where steps do not run one after the other: two that touch the same bytes, one of them writing, are ordered.
std::vector<std::string> find_faults(const DescribedPlan& plan, size_t most = 8);

/// @throws Error(internal) with what find_faults() says, if it says anything.
void verify_plan(const DescribedPlan& plan);

/// Verifies all schedules that the program may run in: in order, and by readiness.
void verify_binding(const Binding& binding);

// For runs of programs whose plans are verified (ProgramOptions::verify_plans), which prove a plan before they follow it: each plan once.
// Nothing happens in runs of other programs.

void prove(const Binding& binding);
void prove(const Binding& binding, const BudgetedPlan& plan);
/// @param plan  that the run follows; null: the binding's offsets
void prove(const Binding& binding, const BudgetedPlan* plan, const Lodgings& lodgings);

// Parts of find_faults().

/// Bytes that a step touches.
struct BytesTouched {
  int32_t step;
  Stretch bytes;  ///< in the memory of the place
  bool writes;
  bool holds = true;  ///< the memory stays at least until the step has ended
};
using Touches = IdVector<PlaceId, std::vector<BytesTouched>>;
using Report = std::function<void(std::string)>;

/// One step after the other. @return what they touch, if they do not run one after the other.
Touches walk_plan(const DescribedPlan& plan, const Report& report);

/// Orders that are not one step after the other.
void check_order(const DescribedPlan& plan, const Touches& touches, const Report& report);

std::string describe_step(const DescribedPlan& plan, size_t step);
std::string describe_bytes(const DescribedPlan& plan, PlaceId place, const Stretch& bytes);

}  // namespace treadle::exec
