// The exception for exhausted memory.
#pragma once

#include <memory>
#include <string>

#include "treadle/error.h"

namespace treadle {

/// A snapshot of what an account held when it refused memory. Internal to the library.
struct HeldMemory;

/// Memory that an account's limit, an allocator or a device refused. Its code is resource_exhausted, like errors of other limits: nodes of
/// a model, states of a pattern, elements of a shape.
class TREADLE_API OutOfMemory final : public Error {
 public:
  /// @param held  null: unknown
  explicit OutOfMemory(std::string message, std::shared_ptr<const HeldMemory> held = nullptr);
  ~OutOfMemory() override;

  const std::shared_ptr<const HeldMemory>& held() const noexcept { return held_; }
  /// describe() appends lines about the memory in use and about possible savings; only once.
  bool is_described() const noexcept { return is_described_; }
  OutOfMemory& describe(std::string_view lines);
  /// A suggestion that would need less memory, for the description: part of a sentence, or empty.
  const std::string& remedy() const noexcept { return remedy_; }
  void set_remedy(std::string remedy) { remedy_ = std::move(remedy); }

 private:
  std::shared_ptr<const HeldMemory> held_;
  std::string remedy_;
  bool is_described_ = false;
};

}  // namespace treadle
