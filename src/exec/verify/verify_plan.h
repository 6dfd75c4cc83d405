// Verifies that each step of a schedule reads the values meant for it. Shares no code with planners and executors: it simulates the steps
// on ranges of bytes, and tracks to which value each byte belongs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "exec/verify/described_plan.h"

namespace treadle::exec {

struct Lodgings;

/// Returns the faults of the plan, at most `most` of them. Each text names the step, its operand, the bytes, and what was expected. The
/// rules:
/// - The bytes that a step reads have been written before and not been overwritten since. This is checked for values within their root
///   (the value whose bytes they share), with row strides, and for bytes of the arena, where a write claims all bytes of the root.
/// - Inputs of a Concat are in place or copied; so are outputs of a Split.
/// - A step overwrites an input only with one of its own outputs, of the same bytes, and only if the operator permits it.
/// - Operands fit into their memory. Row strides equal those passed to the kernel, and the kernel accepts strides.
/// - Held memory exists when it is used, and is freed once, after its last use. Outputs have memory of their own.
/// - In parallel schedules, two steps are ordered if they access the same bytes and at least one of them writes.
std::vector<std::string> find_faults(const DescribedPlan& plan, size_t most = 8);

/// @throws Error(internal) with the faults, if find_faults() returns any
void verify_plan(const DescribedPlan& plan);

/// Verifies a run on the host that has no plan for a memory limit: the schedule that runs instructions in the program's order and, if the
/// program has one, the schedule that starts each instruction as soon as its inputs are ready.
void verify_binding(const Binding& binding);

// Runs call these functions before they follow a plan. A plan is verified only once (Proof), and only if the program verifies plans
// (ProgramOptions::verify_plans).

void prove(const Binding& binding);
void prove(const Binding& binding, const BudgetedPlan& plan);
/// @param plan  the plan that the run follows; null: the binding's offsets
void prove(const Binding& binding, const BudgetedPlan* plan, const Lodgings& lodgings);

// Parts of find_faults():

/// The access of one step to a set of bytes.
struct BytesTouched {
  int32_t step;
  Stretch bytes;  ///< relative to the memory of the place
  bool writes;
  bool holds = true;  ///< true if the step holds a reference to the memory until it has ended
};
using Touches = IdVector<PlaceId, std::vector<BytesTouched>>;
using Report = std::function<void(std::string)>;

/// Simulates the steps one after the other.
/// @return the accesses to each place, if the schedule has parallel steps; otherwise nothing
Touches walk_plan(const DescribedPlan& plan, const Report& report);

/// Checks a schedule with parallel steps: conflicting accesses must be ordered.
void check_order(const DescribedPlan& plan, const Touches& touches, const Report& report);

std::string describe_step(const DescribedPlan& plan, size_t step);
std::string describe_bytes(const DescribedPlan& plan, PlaceId place, const Stretch& bytes);

}  // namespace treadle::exec
