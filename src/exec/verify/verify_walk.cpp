#include "exec/verify/verify_walk.h"

#include <algorithm>

#include "treadle/tensor.h"

namespace treadle::exec {

Touches Walk::run() {
  begin();
  for (size_t s = 0; s < plan_.steps.size(); ++s) {
    step_ = s;
    const Step& step = plan_.steps[s];
    switch (step.act) {
      case Act::compute: compute(step); break;
      case Act::join: join(step); break;
      case Act::split: split(step); break;
      case Act::replay: replay(step); break;
      case Act::copy: copy(step); break;
      case Act::spill: spill(step); break;
      case Act::load: load(step); break;
    }
    for (PlaceId place : std::span(plan_.releases).subspan(step.first_release, step.num_releases)) release(place);
  }
  end();
  return std::move(touches_);
}

void Walk::begin() {
  for (PlaceId p : plan_.places.ids()) {
    const Place& place = plan_.places[p];
    if (place.filled) states_[p].status = Status::here;
    if (place.root != kNoSlot && place.home == Home::planned && place.offset != DescribedPlan::kNowhere &&
        place.offset % Storage::kAlignment != 0)
      report_(fmt::format("\"{}\" is planned at byte {}, which is not a multiple of {}", plan_.values[place.root].name, place.offset,
                          Storage::kAlignment));
  }
  for (SlotId v : plan_.values.ids()) {
    const Value& value = plan_.values[v];
    if (value.given) defined_[v] = 0;
    if (value.viewed == kNoSlot) continue;
    const Value& source = plan_.values[value.viewed];
    if (!value.sized || !source.sized || value.given) continue;
    const bool same = value.root == source.root &&
                      (value.bytes == source.bytes || (value.bytes.rows <= 1 && source.bytes.rows <= 1 &&
                                                       value.bytes.begin == source.bytes.begin && value.bytes.end() == source.bytes.end()));
    if (!same && !(value.bytes.empty() && source.bytes.empty()))
      report_(fmt::format("\"{}\" is to be a view of \"{}\": it has {} of \"{}\", which has {} of \"{}\"", value.name, source.name,
                          text_of(value.bytes), plan_.values[value.root].name, text_of(source.bytes), plan_.values[source.root].name));
  }
  for (PlaceId a : plan_.file_offsets.ids())
    if (plan_.places[a].home == Home::planned && plan_.places[a].root != kNoSlot && !plan_.places[a].lodged &&
        plan_.places[a].size_bytes > 0)
      files_.emplace_back(plan_.file_offsets[a], a);
  std::sort(files_.begin(), files_.end());
  for (size_t k = 1; k < files_.size(); ++k)
    if (files_[k - 1].first + place_of(files_[k - 1].second).size_bytes > files_[k].first)
      report_(fmt::format("\"{}\" and \"{}\" share bytes of the file from byte {} on", root_name(files_[k - 1].second),
                          root_name(files_[k].second), files_[k].first));
}

void Walk::end() {
  step_ = plan_.steps.size();
  for (const Operand& output : plan_.outputs) {
    const Value& value = plan_.values[output.value];
    if (output.place == kNoPlace) {
      fault(fmt::format("the output \"{}\" is nowhere on the host", value.name));
      continue;
    }
    const Place& place = place_of(output.place);
    if (place.home == Home::planned && !place.lodged)
      fault(fmt::format("the output \"{}\" is in the arena, expected is memory of its own", value.name));
    else if (place.home == Home::feed && value.root != output.value)
      fault(fmt::format("the output \"{}\" has the bytes of the feed \"{}\", expected is memory of its own", value.name,
                        plan_.values[value.root].name));
    for (const Operand& other : plan_.outputs)
      if (&other < &output && other.value != output.value && other.place == output.place && place.home == Home::held)
        fault(fmt::format("the outputs \"{}\" and \"{}\" have bytes in common", value.name, plan_.values[other.value].name));
    check_read(output, "the caller takes the output");
  }
  for (PlaceId p : states_.ids()) {
    const Place& place = plan_.places[p];
    const State& state = states_[p];
    if (place.home != Home::held || place.root == kNoSlot) continue;
    if (place.uses >= 0 && place.uses != state.num_uses)
      fault(fmt::format("\"{}\" is let go of after {} steps have touched it, {} do", root_name(p), place.uses, state.num_uses));
    if (place.uses < 0 && state.status == Status::here && state.num_uses > 0 && !plan_.values[place.root].kept)
      fault(fmt::format("\"{}\" is never let go of", root_name(p)));
  }
}

void Walk::compute(const Step& step) {
  take_scratch(step);
  const auto operands = operands_of(step);
  for (size_t k = 0; k < step.num_inputs; ++k) {
    check_packed(step, k);
    read(step, k);
  }
  for (size_t k = step.num_inputs; k < operands.size(); ++k)
    if (operands[k].value != kNoSlot) write(step, k);
  check_apart(step);
}

void Walk::check_packed(const Step& step, size_t k) {
  const Operand& operand = operands_of(step)[k];
  if (operand.value == kNoSlot || !operand.unread) return;
  const uint64_t version = plan_.values[operand.value].version;
  if (operand.packed_version != version)
    fault(fmt::format("its {} is packed as of version {}, the run reads version {}", role(step, k), operand.packed_version, version));
}

void Walk::write(const Step& step, size_t k) {
  const Operand& operand = operands_of(step)[k];
  const Value& value = plan_.values[operand.value];
  const bool is_view = !step.dynamic && check_in_place(step, k);
  if (is_view) {
    use(operand.place, at_place(value, states_[operand.place].base), false);
  } else {
    if (open(step, k)) note_written(operand, value.bytes);
  }
  define(operand);
}

bool Walk::check_in_place(const Step& step, size_t k) {
  const auto operands = operands_of(step);
  const Operand& output = operands[k];
  const Value& value = plan_.values[output.value];
  bool is_view = false;
  for (size_t i = 0; i < operands.size(); ++i) {
    const Operand& other = operands[i];
    if (i == k || other.value == kNoSlot || other.place != output.place || other.unread || (i > k && i >= step.num_inputs)) continue;
    const Value& input = plan_.values[other.value];
    if (!value.sized || !input.sized || !overlap(value.bytes, input.bytes)) continue;
    bool view = false;
    const bool same = value.bytes == input.bytes;
    if (i < step.num_inputs && same && may_lie_over(step, k - step.num_inputs, i, &view)) {
      is_view |= view;
      continue;
    }
    fault(fmt::format("it writes {} over {} ({})", role(step, k), role(step, i), text_of(input.bytes)));
  }
  return is_view;
}

bool Walk::open(const Step& step, size_t k) {
  const Operand& operand = operands_of(step)[k];
  const Value& value = plan_.values[operand.value];
  const Place& place = place_of(operand.place);
  auto who = [&] { return "it writes " + role(step, k); };
  if (!check_place(operand, who, step.dynamic)) return false;
  check_rows(step, k);
  State& state = states_[operand.place];
  if (place.home != Home::planned && place.home != Home::held) {
    if (value.sized && value.bytes.empty()) return false;  // an empty piece of a feed, so nothing is written
    fault(fmt::format("{} into {}", who(), describe_bytes(plan_, operand.place, value.bytes)));
    return false;
  }
  if (step.dynamic) {
    state.status = Status::here;
    return true;
  }
  if (state.status == Status::here) {
    if (operand.at == state.base + value.bytes.begin) return true;
    fault(fmt::format("{} at byte {}, its place is byte {}", who(), operand.at, state.base + value.bytes.begin));
    return false;
  }
  if (state.status != Status::none) return is_here(operand.place, who);
  if (operand.at < value.bytes.begin || (!plan_.moving && place.home == Home::planned && operand.at - value.bytes.begin != place.offset)) {
    fault(fmt::format("{} at byte {}, its place is byte {}", who(), operand.at, place.offset + value.bytes.begin));
    return false;
  }
  if (place.home == Home::held && plan_.preallocates && !place.ready) {
    fault(fmt::format("{}, for which nobody has made memory", who()));
    return false;
  }
  take(operand.place, operand.at - value.bytes.begin, who);
  return true;
}

Touches walk_plan(const DescribedPlan& plan, const Report& report) { return Walk(plan, report).run(); }

}  // namespace treadle::exec
