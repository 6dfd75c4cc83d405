// ONNX Runtime as a peer in C++ benches: its shared library (a Python wheel has one, onnxruntime/capi/libonnxruntime.so.*) through the
// table of its C interface, whose positions never change, so that no header of it is needed.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "treadle/datum.h"

namespace treadle::bench {

/// The library, loaded once. All pointers are its own.
class OnnxRuntime {
 public:
  /// @throws std::runtime_error with what the system or the library says.
  explicit OnnxRuntime(const std::string& path);

  struct Settings {
    int threads = 0;  ///< of a node; 0: as it comes
    bool spinning = true;
    bool global_pool = false;  ///< the process's pool in place of the session's own
  };

  /// A session and the values of its feeds; runs may take place on any number of threads at once.
  class Session {
   public:
    Session(const OnnxRuntime& runtime, const std::string& model, const Settings& settings, const std::map<std::string, Datum>& feeds);
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
    /// Computes all outputs and drops them.
    void run() const;

   private:
    const OnnxRuntime& runtime_;
    void* session_ = nullptr;
    std::vector<std::string> input_names_, output_names_;
    std::vector<void*> values_;
    std::map<std::string, Datum> feeds_;  // whose memory the values use
  };

 private:
  template <typename... Args>
  void call(size_t position, Args... args) const;
  std::vector<std::string> names(void* session, size_t count_at, size_t name_at) const;

  void* const* table_ = nullptr;
  void *env_ = nullptr, *memory_ = nullptr, *allocator_ = nullptr;
};

}  // namespace treadle::bench
