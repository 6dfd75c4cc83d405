// Event files for TensorBoard.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "treadle/export.h"

namespace treadle::train {

/// A file "events.out.tfevents.…" of named numbers, each with its training step. When a call returns, its record has been passed to the
/// operating system.
class TREADLE_API EventFile {
 public:
  /// Makes a new file in the folder, which is created if necessary. @throws Error(io_error)
  explicit EventFile(const std::string& folder);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// Writes one number per name, for one training step. @throws Error(io_error)
  void write(int64_t step, const std::vector<std::pair<std::string, double>>& scalars);

  const std::string& path() const { return path_; }

 private:
  void write_record(std::string_view bytes);

  std::string path_;
  std::FILE* file_ = nullptr;
};

}  // namespace treadle::train
