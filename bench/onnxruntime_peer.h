// ONNX Runtime as a peer in C++ benchmarks. Its shared library (in a Python wheel: onnxruntime/capi/libonnxruntime.so.*) is called through
// the table of its C interface. The positions in it never change, so no header of ONNX Runtime is needed.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "treadle/datum.h"

namespace treadle::bench {

/// The loaded library. All pointers belong to it.
class OnnxRuntime {
 public:
  /// @throws std::runtime_error with the system's or the library's message
  explicit OnnxRuntime(const std::string& path);

  struct Settings {
    int threads = 0;  ///< number of threads within a node; 0: the default
    bool spinning = true;
    bool global_pool = false;  ///< true: the session uses the process's pool; false: it has a pool of its own
  };

  /// A session and the values of its feeds. Any number of threads may run it concurrently.
  class Session {
   public:
    Session(const OnnxRuntime& runtime, const std::string& model, const Settings& settings, const std::map<std::string, Datum>& feeds);
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
    /// Computes all outputs and releases them.
    void run() const;

   private:
    const OnnxRuntime& runtime_;
    void* session_ = nullptr;
    std::vector<std::string> input_names_, output_names_;
    std::vector<void*> values_;
    std::map<std::string, Datum> feeds_;  // these own the memory of the values
  };

 private:
  template <typename... Args>
  void call(size_t position, Args... args) const;
  std::vector<std::string> names(void* session, size_t count_at, size_t name_at) const;

  void* const* table_ = nullptr;
  void *env_ = nullptr, *memory_ = nullptr, *allocator_ = nullptr;
};

}  // namespace treadle::bench
