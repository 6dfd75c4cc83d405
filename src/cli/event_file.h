// Event files that TensorBoard reads.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace treadle::cli {

/// A file "events.out.tfevents.…" of numbers over steps. Each record is on its way to the disk when its call returns.
class EventFile {
 public:
  /// A new file in the folder, which is made if there is none. @throws Error(io_error)
  explicit EventFile(const std::string& folder);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  void write(int64_t step, const std::vector<std::pair<std::string, double>>& scalars);

 private:
  void write_record(std::string_view bytes);

  std::string path_;
  std::FILE* file_ = nullptr;
};

}  // namespace treadle::cli
