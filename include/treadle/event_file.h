// Event files that TensorBoard reads.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "treadle/export.h"

namespace treadle::train {

/// A file "events.out.tfevents.…" of numbers over steps. Each record is on its way to the disk when its call returns.
class TREADLE_API EventFile {
 public:
  /// A new file in the folder, which is made if there is none. @throws Error(io_error)
  explicit EventFile(const std::string& folder);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// Of each number its name and value, at that step. @throws Error(io_error)
  void write(int64_t step, const std::vector<std::pair<std::string, double>>& scalars);

  const std::string& path() const { return path_; }

 private:
  void write_record(std::string_view bytes);

  std::string path_;
  std::FILE* file_ = nullptr;
};

}  // namespace treadle::train
