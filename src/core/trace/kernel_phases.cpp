#include "core/trace/kernel_phases.h"

#include <array>
#include <utility>

#include "core/trace/recorder.h"

namespace treadle {
namespace {

constinit thread_local PhaseState phase_state;

}  // namespace

constinit std::atomic<int> detail::num_wanting_phases{0};

std::string_view name_of(KernelPhase phase) {
  static constexpr std::array<std::string_view, kNumKernelPhases> kNames{
      "",       "pack",    "windows", "borders", "input transform", "compute", "output transform", "epilogue",
      "scores", "softmax", "values",  "move"};
  const auto index = static_cast<size_t>(phase);
  return index < kNames.size() ? kNames[index] : "";
}

PhaseState PhaseState::current() noexcept { return phases_wanted() ? phase_state : PhaseState{}; }

void PhaseNode::begin(uint32_t node, uint16_t run, KernelPhase whole) noexcept {
  before_ = std::exchange(phase_state, {.node = node, .run = run, .recorded = true, .open = whole});
  if (whole != KernelPhase::none) start_ = read_ticks();
}

void PhaseNode::end() noexcept {
  const PhaseState own = std::exchange(phase_state, before_);
  if (start_ != 0) Recorder::of_process().record_phase(own.node, own.open, start_, read_ticks(), own.run);
}

void PhaseScope::begin(KernelPhase phase) noexcept {
  PhaseState& state = phase_state;
  if (!state.recorded || state.open == phase || (phase == KernelPhase::compute && state.open != KernelPhase::none)) return;
  before_ = std::exchange(state.open, phase);
  phase_ = phase;
  start_ = read_ticks();
}

void PhaseScope::end() noexcept { go_on(KernelPhase::none); }

// A single clock reading is the end of one phase and the beginning of the next.
void PhaseScope::go_on(KernelPhase phase) noexcept {
  PhaseState& state = phase_state;
  const uint64_t now = read_ticks();
  if (phase_ != KernelPhase::none) Recorder::of_process().record_phase(state.node, phase_, start_, now, state.run);
  start_ = now;
  phase_ = phase;
  state.open = phase == KernelPhase::none ? before_ : phase;
}

void PhaseGuest::begin(const PhaseState& host) noexcept {
  before_ = std::exchange(phase_state, host);
  start_ = read_ticks();
}

void PhaseGuest::end() noexcept {
  const PhaseState host = std::exchange(phase_state, before_);
  if (idle_) return;
  const uint64_t now = read_ticks();
  Recorder& recorder = Recorder::of_process();
  recorder.record(host.node, RecordKind::chunk, start_, now, 0, 0, host.run);
  if (host.open != KernelPhase::none) recorder.record_phase(host.node, host.open, start_, now, host.run);
}

}  // namespace treadle
