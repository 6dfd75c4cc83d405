// What a load consists of: phases within phases, on the thread that loads. They are noted where a LoadPhases is in scope on the thread, for
// two readings of the clock each; elsewhere a Phase is one branch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/fork_mutex.h"

namespace treadle {

struct LoadPhase {
  std::string name;
  int32_t parent = -1;          ///< the phase (index) that it is part of
  uint64_t start = 0, end = 0;  ///< as read_ticks()
};

/// Thread-safe, but for scopes: one thread at a time adds phases.
class LoadPhases {
 public:
  /// While it lives, phases that begin on this thread are noted there. Scopes nest.
  class Scope {
   public:
    explicit Scope(LoadPhases& phases) noexcept : before_(current_) { current_ = &phases; }
    ~Scope() { current_ = before_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    LoadPhases* const before_;
  };

  /// From here to the end of the block.
  class Phase {
   public:
    /// @param name  a literal, or one that lives as long
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

  /// A session that makes ever new graphs does not keep the phases of all.
  static constexpr size_t kMost = 20'000;
  /// Phases of another load, with their parents; none if that were more than kMost.
  void add(const LoadPhases& others);
  /// In the order of their begins. Those under way end now.
  std::vector<LoadPhase> phases() const;

 private:
  struct Noted {
    std::string_view name;
    std::shared_ptr<const std::string> own;  // the name, where it is no literal
    int32_t parent = -1;
    uint64_t start = 0, end = 0;
  };
  size_t begin(std::string_view name, std::shared_ptr<const std::string> own);
  std::vector<Noted> noted() const;
  void end(size_t index) noexcept;

  static thread_local constinit LoadPhases* current_;
  mutable ForkMutex mutex_;
  std::vector<Noted> phases_;
  int32_t open_ = -1;  // the innermost phase under way
};

}  // namespace treadle
