// Phases within kernels, such as packing or products, for profiles that ask for them. A kernel marks phases on any of its threads. Each
// thread stores the node that it works on, which parallel loops pass on to helpers.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace treadle {

enum class KernelPhase : uint8_t {
  none,
  pack,              ///< reorders, rounds or transposes operands for matrix products
  windows,           ///< convolution: the elements that each output reads are gathered into a matrix (im2col)
  borders,           ///< convolution: the image is copied with its padding
  input_transform,   ///< transforms the input for Winograd's method
  compute,           ///< matrix products, with the epilogue fused into them
  output_transform,  ///< Winograd's output transform with bias and residual; sums of overlapping windows (col2im)
  epilogue,          ///< bias, activation or scale, as a separate pass
  scores,            ///< attention: queries times keys
  softmax,           ///< attention: softmax with masks
  values,            ///< attention: probabilities times values
  move,              ///< a whole kernel that computes nothing but moves elements
};
inline constexpr int kNumKernelPhases = 12;

std::string_view name_of(KernelPhase phase);

namespace detail {
/// The number of profiles that record phases.
extern constinit std::atomic<int> num_wanting_phases;
}  // namespace detail

inline bool phases_wanted() noexcept { return detail::num_wanting_phases.load(std::memory_order_relaxed) > 0; }

/// The node and phase that a thread is working on.
struct PhaseState {
  uint32_t node = 0;  ///< id of the name under which the node is recorded
  uint16_t run = 0;
  bool recorded = false;  ///< false: no phases are wanted for this node
  KernelPhase open = KernelPhase::none;

  /// The state of the calling thread. `recorded` is false if no profile wants phases.
  static PhaseState current() noexcept;
};

/// While an object lives, phases on this thread are recorded for this node.
class PhaseNode {
 public:
  /// @param recorded  false: the object does nothing
  /// @param whole     the phase of the whole kernel; none: the kernel marks phases itself
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
  uint64_t start_ = 0;  // ticks at which the whole kernel's phase began; 0: it has none
  PhaseState before_;
};

/// Records a phase, from here to the end of the block. Phases nest; the time of a product inside another phase counts as that phase. Costs
/// one load if no profile wants phases.
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

  /// Ends this phase and begins the next one; KernelPhase::none: begins none.
  void next(KernelPhase phase) noexcept {
    if (start_ != 0) [[unlikely]]
      go_on(phase);
  }

 private:
  void begin(KernelPhase phase) noexcept;
  void end() noexcept;
  void go_on(KernelPhase phase) noexcept;
  uint64_t start_ = 0;  // ticks at which the phase began; 0: it is not recorded
  KernelPhase phase_ = KernelPhase::none, before_ = KernelPhase::none;
};

/// Made by a helper in a loop of another thread. While it exists, phases on this thread belong to the node of that thread. The helper's
/// time is recorded as a chunk of that node, in the phase that was open when the loop began.
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

  /// Called if the helper did nothing: its time is then not recorded.
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
