// What kernels do, step by step, for profiles that ask for it: packing, products, epilogues. A kernel marks its phases on whatever thread;
// which node they are of is known to the thread, and parallel loops take that along.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace treadle {

enum class KernelPhase : uint8_t {
  none,
  pack,              ///< operands put in the order in which products read them, rounded or turned
  windows,           ///< of a convolution: what each output sees, gathered as a matrix (im2col)
  borders,           ///< of a convolution: the image copied with its pads
  input_transform,   ///< Winograd's
  compute,           ///< products, with the epilogue that is part of them
  output_transform,  ///< Winograd's, with bias and residual; where windows overlap, their sums (col2im)
  epilogue,          ///< bias, activation or scale, as a pass of its own
  scores,            ///< of attention: queries times keys
  softmax,           ///< of attention, with its masks
  values,            ///< of attention: probabilities times values
  move,              ///< all of a kernel that computes nothing: elements go to other places
};
inline constexpr int kNumKernelPhases = 12;

std::string_view name_of(KernelPhase phase);

namespace detail {
/// Profiles that want phases.
extern constinit std::atomic<int> num_wanting_phases;
}  // namespace detail

inline bool phases_wanted() noexcept { return detail::num_wanting_phases.load(std::memory_order_relaxed) > 0; }

/// What a thread is in the middle of.
struct PhaseState {
  uint32_t node = 0;  ///< the name of its records
  uint16_t run = 0;
  bool recorded = false;  ///< false: of no node whose phases are wanted
  KernelPhase open = KernelPhase::none;

  /// Of the calling thread; `recorded` is false where no profile wants phases.
  static PhaseState current() noexcept;
};

/// While it lives, phases on this thread are of a node.
class PhaseNode {
 public:
  /// @param recorded  false: nothing is done
  /// @param whole     what the whole kernel is; none: it marks its own phases
  PhaseNode(bool recorded, uint32_t node, uint16_t run, KernelPhase whole = KernelPhase::none) noexcept : recorded_(recorded) {
    if (recorded) [[unlikely]]
      begin(node, run, whole);
  }
  ~PhaseNode() {
    if (recorded_) [[unlikely]]
      end();
  }
  PhaseNode(const PhaseNode&) = delete;
  PhaseNode& operator=(const PhaseNode&) = delete;

 private:
  void begin(uint32_t node, uint16_t run, KernelPhase whole) noexcept;
  void end() noexcept;
  const bool recorded_;
  uint64_t start_ = 0;  // of the whole kernel's phase; 0: there is none
  PhaseState before_;
};

/// Records a phase, from here to the end of the block. Phases nest; a product within another phase is that phase's. Where no profile wants
/// them it costs a load.
class PhaseScope {
 public:
  explicit PhaseScope(KernelPhase phase) noexcept {
    if (phases_wanted()) [[unlikely]]
      begin(phase);
  }
  ~PhaseScope() {
    if (start_ != 0) [[unlikely]]
      end();
  }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

  /// One phase ends, and the next begins; KernelPhase::none: nothing does.
  void next(KernelPhase phase) noexcept {
    if (start_ != 0) [[unlikely]]
      go_on(phase);
  }

 private:
  void begin(KernelPhase phase) noexcept;
  void end() noexcept;
  void go_on(KernelPhase phase) noexcept;
  uint64_t start_ = 0;  // 0: not recorded
  KernelPhase phase_ = KernelPhase::none, before_ = KernelPhase::none;
};

/// A helper's part in a loop that another thread began: while it lives, phases on this thread are of that thread's node. Its own time is a
/// chunk of that node, and of the phase that was open where the loop began.
class PhaseGuest {
 public:
  explicit PhaseGuest(const PhaseState& host) noexcept : recorded_(host.recorded) {
    if (recorded_) [[unlikely]]
      begin(host);
  }
  ~PhaseGuest() {
    if (recorded_) [[unlikely]]
      end();
  }
  PhaseGuest(const PhaseGuest&) = delete;
  PhaseGuest& operator=(const PhaseGuest&) = delete;

  /// It did nothing: no record is written.
  void forget() noexcept { idle_ = true; }

 private:
  void begin(const PhaseState& host) noexcept;
  void end() noexcept;
  const bool recorded_;
  bool idle_ = false;
  uint64_t start_ = 0;
  PhaseState before_;
};

}  // namespace treadle
