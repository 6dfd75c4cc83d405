// Thread pools whose threads the client makes, or that run on processors of its choice.
#include <algorithm>
#include <cctype>
#include <sstream>

#include "core/threads/thread_factory.h"
#include "core/threads/thread_pool.h"
#include "ort_api/api.h"

namespace treadle::ort {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw StatusError(ORT_FAIL, what); }

int processor_of(const std::string& text) {
  if (!std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; }))
    refuse("Processor id must consist of only digits: " + text);
  constexpr size_t kMostDigits = 9;
  const int number = text.empty() || text.size() > kMostDigits ? 0 : std::stoi(text);
  if (number < 1) refuse("Processor id must start from 1: " + text);
  return number - 1;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

// Parses a text such as "1,2;3-4": for each thread, a list or a range of processors, which are counted from 1.
std::vector<std::vector<int>> processors_of(const std::string& text) {
  std::vector<std::vector<int>> all;
  for (const std::string& thread : split(text, ';')) {
    std::vector<int>& made = all.emplace_back();
    if (thread.empty()) refuse("a thread without a processor in the affinities " + text);
    const std::vector<std::string> ends = split(thread, '-');
    if (ends.size() == 2 && !ends[0].empty()) {
      const int first = processor_of(ends[0]), last = processor_of(ends[1]);
      if (first > last) refuse("Invalid processor interval: " + thread);
      for (int processor = first; processor <= last; ++processor) made.push_back(processor);
      continue;
    }
    for (const std::string& processor : split(thread, ',')) made.push_back(processor_of(processor));
  }
  return all;
}

}  // namespace

std::shared_ptr<ThreadPool> make_pool(const OrtThreads& threads, int num_threads, const std::string& of) {
  if (threads.create != nullptr && threads.join == nullptr) refuse("custom join thread function not set" + of);
  if (threads.affinities && threads.affinities->empty()) refuse("Affinity string must not be empty");
  const int count = make_thread_pool(std::max(num_threads, 0))->num_threads();
  if (!threads.asked() || count == 1) return make_thread_pool(count);
  ThreadFactory factory;
  if (threads.affinities) factory.processors = processors_of(*threads.affinities);
  if (threads.affinities && factory.processors.size() != static_cast<size_t>(count) - 1)
    refuse("Number of affinities does not equal to thread_pool_size minus one, affinities: " + std::to_string(factory.processors.size()) +
           ", thread_pool_size: " + std::to_string(count));
  if (threads.create != nullptr) {
    factory.create = [create = threads.create, options = threads.creation_options](ThreadFactory::Work work, void* argument) {
      void* thread = create(options, work, argument);
      if (thread == nullptr) refuse("custom_create_thread_fn returned invalid handle.");
      return thread;
    };
    factory.join = [join = threads.join](void* thread) { join(thread); };
  }
  const ThreadFactoryScope scope(factory);
  return make_thread_pool(count);
}

void add_custom_threads(OrtApi& table) {
  table.SessionOptionsSetCustomCreateThreadFn = [](OrtSessionOptions* options, OrtCustomCreateThreadFn create) {
    return guarded([&] { required(options, "options").threads.create = create; });
  };
  table.SessionOptionsSetCustomThreadCreationOptions = [](OrtSessionOptions* options, void* given) {
    return guarded([&] { required(options, "options").threads.creation_options = given; });
  };
  table.SessionOptionsSetCustomJoinThreadFn = [](OrtSessionOptions* options, OrtCustomJoinThreadFn join) {
    return guarded([&] { required(options, "options").threads.join = join; });
  };
  table.SetGlobalCustomCreateThreadFn = [](OrtThreadingOptions* options, OrtCustomCreateThreadFn create) {
    return guarded([&] { required(options, "tp_options").threads.create = create; });
  };
  table.SetGlobalCustomThreadCreationOptions = [](OrtThreadingOptions* options, void* given) {
    return guarded([&] { required(options, "tp_options").threads.creation_options = given; });
  };
  table.SetGlobalCustomJoinThreadFn = [](OrtThreadingOptions* options, OrtCustomJoinThreadFn join) {
    return guarded([&] { required(options, "tp_options").threads.join = join; });
  };
  table.SetGlobalIntraOpThreadAffinity = [](OrtThreadingOptions* options, const char* affinities) {
    return guarded([&] {
      constexpr size_t kMostBytes = 4096;
      const std::string given = chars_of(affinities, "affinity_string");
      if (given.empty() || given.size() > kMostBytes)
        throw Error(ErrorCode::invalid_argument, "Size of affinity string must be between 1 and " + std::to_string(kMostBytes));
      required(options, "tp_options").threads.affinities = given;
    });
  };
  // Always fails. A thread pool would have to call these callbacks for each task; ONNX Runtime's packages do not support them either.
  table.SetPerSessionThreadPoolCallbacks = [](OrtEnv*, const OrtThreadPoolCallbacksConfig* config) {
    if (config == nullptr) return make_status(ORT_INVALID_ARGUMENT, "config must not be null");
    constexpr uint32_t kFirstVersion = 24;
    const uint32_t version = *reinterpret_cast<const uint32_t*>(config);
    if (version < kFirstVersion || version > kApiVersion)
      return make_status(ORT_INVALID_ARGUMENT, "OrtThreadPoolCallbacksConfig requires version set to ORT_API_VERSION");
    return make_status(ORT_NOT_IMPLEMENTED, missing_text("SetPerSessionThreadPoolCallbacks").c_str());
  };
}

}  // namespace treadle::ort
