// The exception for exhausted memory.
#pragma once

#include <memory>
#include <string>

#include "treadle/error.h"

namespace treadle {

/// A snapshot of what an account held when it refused memory. Internal to the library.
struct HeldMemory;

/// Reports memory that an account's limit, an allocator or a device refused. Errors of other limits (nodes of a model, states of a pattern,
/// elements of a shape) have the same code, resource_exhausted, but are not of this class.
class TREADLE_API OutOfMemory final : public Error {
 public:
  /// @param held  memory in use when the request was refused; null: unknown
  explicit OutOfMemory(std::string message, std::shared_ptr<const HeldMemory> held = nullptr);
  ~OutOfMemory() override;

  const std::shared_ptr<const HeldMemory>& held() const noexcept { return held_; }
  /// True after describe() has appended lines about the memory in use and about possible savings. It does so only once.
  bool is_described() const noexcept { return is_described_; }
  OutOfMemory& describe(std::string_view lines);
  /// A suggestion for using less memory, which describe() adds: part of a sentence, or empty.
  const std::string& remedy() const noexcept { return remedy_; }
  void set_remedy(std::string remedy) { remedy_ = std::move(remedy); }

 private:
  std::shared_ptr<const HeldMemory> held_;
  std::string remedy_;
  bool is_described_ = false;
};

}  // namespace treadle
