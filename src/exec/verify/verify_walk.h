// The state of find_faults() while it simulates the steps of a plan. Used only by exec/verify/*.cpp.
#pragma once

#include <fmt/format.h>

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "exec/verify/verify_plan.h"

namespace treadle::exec {

/// Simulates the steps one after the other, and tracks two things. For each arena: the place (memory of a value) that owns each byte. A
/// write to a place takes all its bytes from other places. For each root (value with bytes of its own): a log of the writes to them. A
/// value that shares the bytes is intact if no later write overlaps its part.
class Walk {
  using Act = DescribedPlan::Act;
  using Home = DescribedPlan::Home;
  using Operand = DescribedPlan::Operand;
  using Place = DescribedPlan::Place;
  using Step = DescribedPlan::Step;
  using Value = DescribedPlan::Value;

 public:
  Walk(const DescribedPlan& plan, const Report& report)
      : plan_(plan),
        report_(report),
        defined_(plan.values.size(), kNever),
        written_(plan.values.size(), kNone),
        num_written_(plan.values.size(), 0),
        states_(plan.places.size()),
        owners_(plan.memories.size()),
        touches_(plan.order == DescribedPlan::Order::one_by_one ? 0 : plan.places.size()) {}

  Touches run();

 private:
  static constexpr int32_t kNever = -1, kNone = -1;
  enum class Status : uint8_t { none, here, overwritten, away, released };
  struct State {
    Status status = Status::none;
    bool in_file = false;
    size_t base = 0;  // offset, in the place's memory, of the root: the value whose bytes other values share
    // `version`: number of writes to the root, in order, that the place contains; `file_version`: the same for the copy in the spill file.
    int32_t version = 0, file_version = 0;
    PlaceId taken_by = kNoPlace;          // the place that overwrote this one
    int32_t taken_at = -1;                // the step that overwrote this place
    int32_t last_use = -1, num_uses = 0;  // `last_use`: index of the last step that used it; `num_uses`: number of such steps
  };
  // A write to a root, a value with bytes of its own. Each entry refers to the previous write to the same root.
  struct Written {
    SlotId value;
    Stretch bytes;  // offset and length relative to the root's first byte
    int32_t before;
    int32_t step;
  };

  void join(const Step& step);
  bool is_in_place(const Step& step, const Operand& piece, const Operand& whole, const Stretch& there) const;
  // Checks that a piece is copied block by block, beginning with the first, without overwriting bytes that are still to be read.
  void move(const Step& step, const Operand& piece, size_t k, const Operand& whole, const Stretch& to);
  void split(const Step& step);
  // Checks a recomputation, which repeats an earlier write. Other results of the step must go to separate memory.
  void replay(const Step& step);
  void copy(const Step& step);
  void spill(const Step& step);
  void load(const Step& step);
  void release(PlaceId place);
  void begin();
  void end();
  void compute(const Step& step);
  void write(const Step& step, size_t k);
  // Checks that an output overwrites inputs only where the operator permits it. @return true if the output is a view, which writes nothing
  bool check_in_place(const Step& step, size_t k);
  // Checks that the operand may be written, and makes its place the owner of the bytes. @return false if it may not be written
  bool open(const Step& step, size_t k);

  std::span<const Operand> operands_of(const Step& step) const {
    return std::span(plan_.operands).subspan(step.first_operand, static_cast<size_t>(step.num_inputs) + step.num_outputs);
  }
  const Place& place_of(PlaceId place) const { return plan_.places[place]; }
  std::string_view root_name(PlaceId place) const {
    return place_of(place).root == kNoSlot ? std::string_view("scratch") : plan_.values[place_of(place).root].name;
  }
  static std::string text_of(const Stretch& bytes) {
    if (bytes.rows > 1)
      return fmt::format("{} rows of {} bytes every {} from byte {}", bytes.rows, bytes.row_bytes, bytes.step_bytes, bytes.begin);
    return fmt::format("bytes [{}, {})", bytes.begin, bytes.end());
  }

  void fault(const std::string& what) { report_(fmt::format("{}: {}", describe_step(plan_, step_), what)); }

  // Returns the value's bytes relative to its place's memory.
  Stretch at_place(const Value& value, size_t base) const {
    Stretch bytes = value.bytes;
    bytes.begin += base;
    return bytes;
  }

  // Follows views back to a value that a step wrote or that existed at the start.
  SlotId source_of(SlotId value) const {
    for (size_t hops = 0; plan_.values[value].viewed != kNoSlot && hops < plan_.values.size(); ++hops) value = plan_.values[value].viewed;
    return value;
  }

  std::string role(const Step& step, size_t k) const {
    const Operand& operand = operands_of(step)[k];
    const bool is_input = k < step.num_inputs;
    return fmt::format("{} {} \"{}\"", is_input ? "input" : "output", is_input ? k : k - step.num_inputs, plan_.values[operand.value].name);
  }

  void use(PlaceId place, const Stretch& bytes, bool writes) {
    State& state = states_[place];
    if (state.last_use != static_cast<int32_t>(step_)) ++state.num_uses;
    state.last_use = static_cast<int32_t>(step_);
    if (!touches_.empty()) touches_[place].push_back({static_cast<int32_t>(step_), bytes, writes, !plan_.steps[step_].on_loan});
  }

  template <typename Who>
  bool is_here(PlaceId place, const Who& who_is) {
    const State& state = states_[place];
    if (state.status == Status::here) return true;
    const std::string who = who_is();
    switch (state.status) {
      case Status::here: break;
      case Status::none: fault(fmt::format("{}, whose bytes nothing has been written to", who)); break;
      case Status::away: fault(fmt::format("{}, which is away in the file and was not brought back", who)); break;
      case Status::released: fault(fmt::format("{}, which was let go of before", who)); break;
      case Status::overwritten: {
        const Stretch mine{.begin = state.base, .row_bytes = place_of(place).size_bytes};
        fault(fmt::format("{}: {} was written over by {} of {}", who, describe_bytes(plan_, place, mine),
                          describe_bytes(plan_, state.taken_by,
                                         {.begin = states_[state.taken_by].base, .row_bytes = place_of(state.taken_by).size_bytes}),
                          describe_step(plan_, index(state.taken_at))));
        break;
      }
    }
    return false;
  }

  // Checks that the operand's place contains the value whose bytes the operand shares (its root), and is large enough.
  template <typename Who>
  bool check_place(const Operand& operand, const Who& who, bool made_here) {
    const Value& value = plan_.values[operand.value];
    const Place& place = place_of(operand.place);
    if (place.root != value.root) {
      fault(fmt::format("{} is looked for in the bytes of \"{}\", it has those of \"{}\"", who(), root_name(operand.place),
                        plan_.values[value.root].name));
      return false;
    }
    if (!value.sized || made_here) return true;
    if (value.bytes.end() > place.size_bytes) {
      fault(fmt::format("{} takes {}, the memory that it is in has {} bytes", who(), text_of(value.bytes), place.size_bytes));
      return false;
    }
    if (operand.at == DescribedPlan::kNowhere) {
      if (value.bytes.empty()) return false;
      fault(fmt::format("{} is pointed at nothing, its bytes are {}", who(), describe_bytes(plan_, operand.place, value.bytes)));
      return false;
    }
    return true;
  }

  void check_packed(const Step& step, size_t k);

  void check_rows(const Step& step, size_t k) {
    const Operand& operand = operands_of(step)[k];
    const Value& value = plan_.values[operand.value];
    if (!value.sized || value.bytes.rows <= 1 || value.bytes.empty()) return;
    const bool piecewise = step.act == Act::join || step.act == Act::split;
    if (!operand.takes_steps || (piecewise && !step.along_rows))
      fault(fmt::format("its {} has {}, the kernel takes its rows one behind the other", role(step, k), text_of(value.bytes)));
    else if (operand.told_step_bytes != value.bytes.step_bytes)
      fault(fmt::format("its {} has {}, the kernel is told of rows every {} bytes", role(step, k), text_of(value.bytes),
                        operand.told_step_bytes));
  }

  // Checks that the operand's pointer leads to its value, and that no other write has overwritten the value's bytes.
  bool check_read(const Operand& operand, const char* verb) {
    const Value& value = plan_.values[operand.value];
    auto name = [&] { return fmt::format("{} \"{}\"", verb, value.name); };
    const State& state = states_[operand.place];
    const Place& place = place_of(operand.place);
    const bool plain = place.root == value.root && value.sized && state.status == Status::here &&
                       operand.at == state.base + value.bytes.begin && value.bytes.end() <= place.size_bytes;
    if (!plain) {
      if (!check_place(operand, name, false) || (value.sized && value.bytes.empty()) || !is_here(operand.place, name)) return false;
      if (value.sized && operand.at != state.base + value.bytes.begin && operand.at != DescribedPlan::kNowhere &&
          step_ < plan_.steps.size()) {
        fault(fmt::format("{} at byte {}, it is at byte {}", name(), operand.at, state.base + value.bytes.begin));
        return false;
      }
    }
    const int32_t defined = defined_[source_of(operand.value)];
    if (defined == kNever) {
      fault(fmt::format("{}, which no step has written", name()));
      return false;
    }
    if (state.version < defined) {
      fault(fmt::format("{}: {} has an older content there", name(), describe_bytes(plan_, operand.place, at_place(value, state.base))));
      return false;
    }
    int32_t number = num_written_[value.root];
    for (int32_t w = written_[value.root]; number > defined; w = log_[index(w)].before, --number) {
      const Written& written = log_[index(w)];
      if (number > state.version || (value.sized && !overlap(written.bytes, value.bytes))) continue;
      fault(fmt::format("{}: {} was written over by {} (\"{}\" has {})", name(),
                        describe_bytes(plan_, operand.place, at_place(value, state.base)), describe_step(plan_, index(written.step)),
                        plan_.values[written.value].name, text_of(written.bytes)));
      return false;
    }
    return true;
  }

  void read(const Step& step, size_t k) {
    const Operand& operand = operands_of(step)[k];
    if (operand.value == kNoSlot || operand.unread) return;
    check_rows(step, k);
    check_read(operand, "it reads");
    const Value& value = plan_.values[operand.value];
    use(operand.place, at_place(value, states_[operand.place].base), false);
    if (operand.by_reference && value.sized) kept_.push_back({operand.value, value.bytes, -1, static_cast<int32_t>(step_)});
  }

  // Makes a place the owner of bytes of an arena. Other places that owned any of these bytes lose their contents.
  template <typename Who>
  void take(PlaceId place, size_t base, const Who& who) {
    const Place& own = place_of(place);
    State& state = states_[place];
    if (own.home == Home::planned) {  // the place no longer owns its previous bytes
      auto& owners = owners_[index(own.memory)];
      if (auto old = owners.find(state.base); old != owners.end() && old->second == place) owners.erase(old);
    }
    state.status = Status::here;
    state.base = base;
    if (own.home != Home::planned || own.size_bytes == 0) return;
    if (base > plan_.memories[index(own.memory)] || own.size_bytes > plan_.memories[index(own.memory)] - base)
      fault(fmt::format("{} takes {}, the arena has {} bytes", who(), text_of({.begin = base, .row_bytes = own.size_bytes}),
                        plan_.memories[index(own.memory)]));
    auto& owners = owners_[index(own.memory)];
    auto next = owners.lower_bound(base);
    if (next != owners.begin())
      if (auto before = std::prev(next); before->first + place_of(before->second).size_bytes > base) next = before;
    while (next != owners.end() && next->first < base + own.size_bytes) {
      if (next->second != place) {
        State& lost = states_[next->second];
        lost.status = Status::overwritten;
        lost.taken_by = place;
        lost.taken_at = static_cast<int32_t>(step_);
      }
      next = owners.erase(next);
    }
    owners.emplace_hint(next, base, place);
  }

  void note_written(const Operand& operand, const Stretch& bytes) {
    const Value& value = plan_.values[operand.value];
    State& state = states_[operand.place];
    const SlotId root = value.root;
    if (state.version != num_written_[root] && num_written_[root] > 0)
      fault(fmt::format("it writes \"{}\" beside an older content of \"{}\"", value.name, plan_.values[root].name));
    for (const Written& kept : kept_)
      if (plan_.values[kept.value].root == value.root && overlap(kept.bytes, bytes))
        fault(fmt::format("it writes \"{}\" over {} of \"{}\", which {} may have kept", value.name, text_of(kept.bytes),
                          plan_.values[kept.value].name, describe_step(plan_, index(kept.step))));
    log_.push_back({operand.value, bytes, written_[root], static_cast<int32_t>(step_)});
    written_[root] = static_cast<int32_t>(log_.size()) - 1;
    state.version = ++num_written_[root];
    Stretch there = bytes;
    there.begin += state.base;
    use(operand.place, there, true);
  }

  void define(const Operand& operand) {
    const Value& value = plan_.values[operand.value];
    if (defined_[operand.value] != kNever) fault(fmt::format("it writes \"{}\" once more", value.name));
    defined_[operand.value] = num_written_[value.root];
  }

  // Returns true if the operator permits this output in the memory of this input. Sets `view` if the output then is the unchanged input.
  static bool may_lie_over(const Step& step, size_t output, size_t input, bool* view) {
    for (const Alias& alias : step.node->op->alias) {
      if (alias.output != static_cast<int>(output) || alias.input != static_cast<int>(input)) continue;
      *view = alias.kind == Alias::Kind::view;
      return true;
    }
    return false;
  }

  void take_scratch(const Step& step) {
    if (step.scratch == kNoPlace || place_of(step.scratch).size_bytes == 0) return;
    take(step.scratch, step.scratch_at, [] { return std::string("its scratch"); });
    use(step.scratch, {.begin = step.scratch_at, .row_bytes = place_of(step.scratch).size_bytes}, true);
  }

  // Checks that no operand of the step overwrites another operand or the scratch memory.
  void check_apart(const Step& step) {
    auto lost = [&](PlaceId place) {
      const State& state = states_[place];
      return state.status == Status::overwritten && state.taken_at == static_cast<int32_t>(step_);
    };
    const auto operands = operands_of(step);
    for (size_t k = 0; k < operands.size(); ++k)
      if (operands[k].value != kNoSlot && !operands[k].unread && lost(operands[k].place))
        is_here(operands[k].place, [&] { return "it uses " + role(step, k); });
    if (step.scratch != kNoPlace && lost(step.scratch)) is_here(step.scratch, [] { return std::string("it uses its scratch"); });
  }

  // Returns the distance in bytes between rows of an operand of a join or split; this is `length` if rows are contiguous.
  static size_t pitch_of(const Step& step, const Operand& operand, size_t length) {
    return step.along_rows && operand.told_step_bytes != 0 ? operand.told_step_bytes : length;
  }

  size_t block_of(const Step& step, const Operand& operand) const {
    const Stretch& bytes = plan_.values[operand.value].bytes;
    return step.blocks == 0 ? 0 : bytes.rows * bytes.row_bytes / step.blocks;
  }

  const DescribedPlan& plan_;
  const Report& report_;
  size_t step_ = 0;
  IdVector<SlotId, int32_t> defined_;      // for each value: number of writes to the bytes that it shares, when it was made
  IdVector<SlotId, int32_t> written_;      // for each value with its own bytes: index in log_ of the last write
  IdVector<SlotId, int32_t> num_written_;  // for each value with its own bytes: number of writes
  std::vector<Written> log_;
  std::vector<Written> kept_;  // values that a step may hold a reference to
  IdVector<PlaceId, State> states_;
  std::vector<std::map<size_t, PlaceId>> owners_;  // for each arena: the places that own bytes, by offset
  std::vector<std::pair<size_t, PlaceId>> files_;  // places, with their offsets in the spill file
  Touches touches_;                                // accesses to each place; empty if steps run one after the other
};

}  // namespace treadle::exec
