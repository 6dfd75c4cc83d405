// Nested phases of loading a model, on the loading thread. If the thread has a LoadPhases::Scope, a Phase is recorded and costs two clock
// readings; otherwise it costs one branch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/fork_mutex.h"

namespace treadle {

struct LoadPhase {
  std::string name;
  int32_t parent = -1;          ///< index of the enclosing phase; -1: none
  uint64_t start = 0, end = 0;  ///< times in ticks of read_ticks()
};

/// The phases of one load. Thread-safe, except for scopes: only one thread at a time may add phases.
class LoadPhases {
 public:
  /// While an object lives, phases that begin on this thread are recorded. Scopes nest.
  class Scope {
   public:
    explicit Scope(LoadPhases& phases) noexcept : before_(current_) { current_ = &phases; }
    ~Scope() { current_ = before_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    LoadPhases* const before_;
  };

  /// Records a phase, from this object's construction to the end of the block.
  class Phase {
   public:
    /// @param name  a literal, or text that exists at least as long as the load is recorded
    explicit Phase(std::string_view name) : Phase(name, {}) {}
    explicit Phase(const char* name) : Phase(name, {}) {}
    explicit Phase(std::string name) : Phase({}, std::make_shared<const std::string>(std::move(name))) {}
    ~Phase() {
      if (phases_) [[unlikely]]
        phases_->end(index_);
    }
    Phase(const Phase&) = delete;
    Phase& operator=(const Phase&) = delete;

   private:
    Phase(std::string_view name, std::shared_ptr<const std::string> own) : phases_(current_) {
      if (phases_) [[unlikely]]
        index_ = phases_->begin(name, std::move(own));
    }
    LoadPhases* const phases_;
    size_t index_ = 0;
  };

  /// Maximum number of phases that are kept. It limits memory for sessions that repeatedly make new graphs.
  static constexpr size_t kMost = 20'000;
  /// Appends the phases of another load, unless there would then be more than kMost.
  void add(const LoadPhases& others);
  /// Returns the phases in the order of their begins. Phases that are still open end now.
  std::vector<LoadPhase> phases() const;

 private:
  struct Noted {
    std::string_view name;
    std::shared_ptr<const std::string> own;  // owns the name if it is not a literal
    int32_t parent = -1;
    uint64_t start = 0, end = 0;
  };
  size_t begin(std::string_view name, std::shared_ptr<const std::string> own);
  std::vector<Noted> noted() const;
  void end(size_t index) noexcept;

  static thread_local constinit LoadPhases* current_;
  mutable ForkMutex mutex_;
  std::vector<Noted> phases_;
  int32_t open_ = -1;  // the innermost open phase
};

}  // namespace treadle
