// Memory that ran out, as an exception of its own.
#pragma once

#include <memory>
#include <string>

#include "treadle/error.h"

namespace treadle {

/// What an account held when it refused memory: of this library only.
struct HeldMemory;

/// Memory that an account's limit, an allocator or a device refused. Its code is resource_exhausted, which limits of other things have too:
/// nodes of a model, states of a pattern, elements of a shape.
class TREADLE_API OutOfMemory final : public Error {
 public:
  /// @param held  null: not known
  explicit OutOfMemory(std::string message, std::shared_ptr<const HeldMemory> held = nullptr);
  ~OutOfMemory() override;

  const std::shared_ptr<const HeldMemory>& held() const noexcept { return held_; }
  /// Lines on what was held and what would need less stand behind the message. They are added once.
  bool is_described() const noexcept { return is_described_; }
  OutOfMemory& describe(std::string_view lines);
  /// What would need less, for whoever describes the error: a part of a sentence, or empty.
  const std::string& remedy() const noexcept { return remedy_; }
  void set_remedy(std::string remedy) { remedy_ = std::move(remedy); }

 private:
  std::shared_ptr<const HeldMemory> held_;
  std::string remedy_;
  bool is_described_ = false;
};

}  // namespace treadle
