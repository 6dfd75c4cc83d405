// Runs models with ONNX Runtime in C++ benchmarks, for comparison. The code loads ONNX Runtime's shared library (in a Python wheel:
// onnxruntime/capi/libonnxruntime.so.*) and calls the functions in the table OrtApi by their positions, without ONNX Runtime's headers.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "treadle/datum.h"

namespace treadle::bench {

/// The loaded library of ONNX Runtime.
class OnnxRuntime {
 public:
  /// @throws std::runtime_error with the message of the system or of the library
  explicit OnnxRuntime(const std::string& path);

  struct Settings {
    int threads = 0;  ///< number of threads within a node; 0: the default
    bool spinning = true;
    bool global_pool = false;  ///< true: the session uses the thread pool of the whole process; false: it has its own pool
  };

  /// A session with the values of its feeds. Any number of threads may call run() at the same time.
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
    std::map<std::string, Datum> feeds_;  // these values own the memory that ONNX Runtime's inputs use
  };

 private:
  template <typename... Args>
  void call(size_t position, Args... args) const;
  std::vector<std::string> names(void* session, size_t count_at, size_t name_at) const;

  void* const* table_ = nullptr;
  void *env_ = nullptr, *memory_ = nullptr, *allocator_ = nullptr;
};

}  // namespace treadle::bench
