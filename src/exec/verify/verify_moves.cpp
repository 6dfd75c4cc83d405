// The verifier's rules for moves: copies between devices, and values that a run with a budgeted plan spills, loads or recomputes.
#include "exec/verify/verify_walk.h"

namespace treadle::exec {

void Walk::replay(const Step& step) {
  take_scratch(step);
  const auto operands = operands_of(step);
  State& target = states_[step.target];
  for (size_t k = step.num_inputs; k < operands.size(); ++k)
    if (operands[k].value != kNoSlot && operands[k].place != step.target)
      take(operands[k].place, operands[k].at, [] { return std::string("a result that nobody wants"); });
  for (size_t k = 0; k < step.num_inputs; ++k) read(step, k);
  for (size_t k = step.num_inputs; k < operands.size(); ++k) {
    const Operand& operand = operands[k];
    if (operand.value == kNoSlot || operand.place != step.target) continue;
    const Value& value = plan_.values[operand.value];
    bool in_place = false;
    for (const Operand& input : operands.first(step.num_inputs)) in_place |= input.value != kNoSlot && input.place == step.target;
    if (!in_place) target.status = Status::none;
    // `number` counts the writes to the root (the value whose bytes are shared). It becomes the position among them of the repeated write.
    int32_t number = num_written_[value.root], written = written_[value.root];
    while (written != kNone && log_[index(written)].value != operand.value) written = log_[index(written)].before, --number;
    // A piece that is already in place in the recomputed value need not be written again.
    if (written == kNone && in_place && defined_[operand.value] != kNever) continue;
    if (written == kNone) {
      fault(fmt::format("\"{}\" is made anew before it was made", value.name));
      continue;
    }
    if (in_place && target.version != number - 1) fault(fmt::format("\"{}\" is made anew from another content than at first", value.name));
    if (!in_place && operand.at >= value.bytes.begin)
      take(step.target, operand.at - value.bytes.begin, [&] { return fmt::format("\"{}\", made anew,", value.name); });
    target.version = number;
  }
  check_apart(step);
}

void Walk::copy(const Step& step) {
  const State& from = states_[step.place];
  State& to = states_[step.target];
  const Place &source = place_of(step.place), &target = place_of(step.target);
  if (source.root != target.root) fault(fmt::format("it copies \"{}\" to where \"{}\" is", root_name(step.place), root_name(step.target)));
  if (!is_here(step.place, [&] { return fmt::format("it copies \"{}\"", root_name(step.place)); })) return;
  const Value& root = plan_.values[source.root];
  use(step.place, at_place(root, from.base), false);
  take(step.target, target.home == Home::planned ? target.offset : 0, [&] { return fmt::format("the copy of \"{}\"", root.name); });
  to.version = from.version;
  use(step.target, at_place(root, to.base), true);
}

void Walk::spill(const Step& step) {
  State& state = states_[step.place];
  if (place_of(step.place).size_bytes == 0) return;
  if (!is_here(step.place, [&] { return fmt::format("\"{}\" is written to the file", root_name(step.place)); })) return;
  if (state.base != step.offset)
    fault(fmt::format("\"{}\" is written to the file from byte {}, it is at byte {}", root_name(step.place), step.offset, state.base));
  state.in_file = true;
  state.file_version = state.version;
  state.status = Status::away;
  auto& owners = owners_[index(place_of(step.place).memory)];
  if (auto own = owners.find(state.base); own != owners.end() && own->second == step.place) owners.erase(own);
}

void Walk::load(const Step& step) {
  State& state = states_[step.place];
  if (place_of(step.place).size_bytes == 0) return;
  if (!state.in_file) fault(fmt::format("\"{}\" is brought back from the file, where it is not", root_name(step.place)));
  take(step.place, step.offset, [&] { return fmt::format("\"{}\", brought back,", root_name(step.place)); });
  state.version = state.file_version;
}

void Walk::release(PlaceId place) {
  State& state = states_[place];
  if (place_of(place).home != Home::held || state.status != Status::here)
    fault(fmt::format("it lets go of \"{}\", which {}", root_name(place),
                      state.status == Status::released ? "was let go of before" : "is not held"));
  else if (plan_.values[place_of(place).root].kept)
    fault(fmt::format("it lets go of \"{}\", which is handed out", root_name(place)));
  state.status = Status::released;
}

}  // namespace treadle::exec
