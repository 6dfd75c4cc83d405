// The verifier's rules for joins (Concat) and splits (Split), whose pieces may be in place or copied.
#include "exec/verify/verify_walk.h"

namespace treadle::exec {

void Walk::join(const Step& step) {
  const auto operands = operands_of(step);
  const Operand& whole = operands[step.num_inputs];
  const Value& value = plan_.values[whole.value];
  if (step.blocks == 0 || value.bytes.empty()) return compute(step);  // empty pieces: there are no bytes to join
  take_scratch(step);
  const size_t pitch = pitch_of(step, whole, block_of(step, whole));
  size_t position = 0;
  bool copies = false;
  for (size_t k = 0; k < step.num_inputs; ++k) {
    if (operands[k].value == kNoSlot) continue;
    const Stretch there{whole.at + position, block_of(step, operands[k]), pitch, step.blocks};
    position += there.row_bytes;
    if (is_in_place(step, operands[k], whole, there)) {
      read(step, k);
      continue;
    }
    if (!copies && !open(step, step.num_inputs)) return define(whole);
    copies = true;
    read(step, k);
    move(step, operands[k], k, whole, there);
  }
  if (position != block_of(step, whole))
    fault(fmt::format("its inputs have {} bytes a row, its output has {}", position, block_of(step, whole)));
  if (!copies) {
    check_rows(step, step.num_inputs);
    check_place(
        whole, [&] { return "it has " + role(step, step.num_inputs); }, false);
    use(whole.place, at_place(value, states_[whole.place].base), false);
  }
  define(whole);
  check_apart(step);
}

bool Walk::is_in_place(const Step& step, const Operand& piece, const Operand& whole, const Stretch& there) const {
  if (piece.place != whole.place || piece.at != there.begin) return false;
  return step.blocks == 1 || there.empty() || pitch_of(step, piece, there.row_bytes) == there.step_bytes;
}

void Walk::move(const Step& step, const Operand& piece, size_t k, const Operand& whole, const Stretch& to) {
  if (to.empty()) return;
  const Stretch from{piece.at, to.row_bytes, pitch_of(step, piece, to.row_bytes), to.rows};
  if (piece.place == whole.place && overlap(from, to)) {
    bool behind = to.begin <= from.begin;
    for (size_t r = 0; behind && r + 1 < to.rows; ++r)
      behind = to.begin + (r + 1) * to.step_bytes <= from.begin + (r + 1) * from.step_bytes &&
               to.begin + r * to.step_bytes + to.row_bytes <= from.begin + (r + 1) * from.step_bytes;
    if (!behind) fault(fmt::format("it copies {} to {} over what it has yet to read", role(step, k), text_of(to)));
  }
  Stretch within = to;
  within.begin -= states_[whole.place].base;
  note_written(whole, within);
}

void Walk::split(const Step& step) {
  take_scratch(step);
  const auto operands = operands_of(step);
  for (size_t k = 0; k < step.num_inputs; ++k) read(step, k);
  const Operand& whole = operands[0];
  if (whole.value == kNoSlot) return;
  const size_t pitch = pitch_of(step, whole, block_of(step, whole));
  size_t position = 0;
  bool known = true;  // false after an absent output, because then `position` is unknown
  for (size_t k = step.num_inputs; k < operands.size(); ++k) {
    const Operand& piece = operands[k];
    if (piece.value == kNoSlot) {
      known = false;
      continue;
    }
    const Value& value = plan_.values[piece.value];
    const Stretch there{whole.at + position, block_of(step, piece), pitch, step.blocks};
    position += there.row_bytes;
    if (known && is_in_place(step, piece, whole, there)) {
      check_rows(step, k);
      check_place(
          piece, [&] { return "it has " + role(step, k); }, false);
      use(piece.place, at_place(value, states_[piece.place].base), false);
      define(piece);
    } else {
      write(step, k);
    }
  }
  if (known && position != block_of(step, whole))
    fault(fmt::format("its outputs have {} bytes a row, its input has {}", position, block_of(step, whole)));
  check_apart(step);
}

}  // namespace treadle::exec
