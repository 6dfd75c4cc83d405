// Tests sessions through the C ABI: memory, closing, tags and targets.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "onnx/serialize.h"
#include "tests/c_api/status.h"
#include "tests/session/models.h"
#include "treadle/treadle.h"

namespace {

using treadle::testing::message_of;

struct Opened {
  treadle_model* model = nullptr;
  treadle_session* session = nullptr;

  explicit Opened(const treadle_session_options& options, std::string* error = nullptr) {
    const std::string bytes = treadle::onnx::serialize_model(treadle::testing::two_outputs().def());
    EXPECT_EQ(message_of(treadle_model_from_bytes(bytes.data(), bytes.size(), nullptr, &model)), "");
    const std::string message = message_of(treadle_session_create(model, &options, &session));
    if (error) {
      *error = message;
    } else {
      EXPECT_EQ(message, "");
    }
  }
  ~Opened() {
    treadle_session_release(session);
    treadle_model_release(model);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  std::string run(const treadle_run_options* options = nullptr) const {
    const int64_t shape[] = {3};
    float data[] = {1, 2, 3};
    treadle_value *x = nullptr, *outputs[2] = {};
    EXPECT_EQ(message_of(treadle_tensor_borrow(TREADLE_FLOAT32, shape, 1, data, sizeof data, nullptr, nullptr, &x)), "");
    const char* names[] = {"x"};
    const std::string message = message_of(treadle_session_run(session, options, names, &x, 1, nullptr, 2, outputs));
    if (message.empty()) {
      EXPECT_EQ(static_cast<const float*>(treadle_tensor_data(outputs[0]))[2], 12);
    }
    for (treadle_value* output : outputs) treadle_value_release(output);
    treadle_value_release(x);
    return message;
  }
};

treadle_session_options defaults() {
  treadle_session_options options{};
  options.struct_size = sizeof options;
  return options;
}

TEST(CApi, EveryOptionHasAConfigEntry) {
  treadle_session_options options = defaults();
  const treadle_config_entry right[] = {{"treadle.execution_mode", "parallel"}, {"treadle.graph_optimization_level", "basic"},
                                        {"treadle.reuse_memory", "0"},          {"treadle.max_patches", "3"},
                                        {"treadle.memory_limit_bytes", "1GiB"}, {"session.intra_op.allow_spinning", "0"}};
  options.config_entries = right;
  options.num_config_entries = std::size(right);
  EXPECT_EQ(Opened(options).run(), "");
  for (const auto& [key, said] : {std::pair{"execution_mode", "treadle.execution_mode"},
                                  {"session.device", "treadle.device"},
                                  {"treadle.max_patchs", "treadle.max_patches"}}) {
    const treadle_config_entry wrong[] = {{key, "1"}};
    options.config_entries = wrong;
    options.num_config_entries = 1;
    std::string error;
    const Opened opened(options, &error);
    EXPECT_NE(error.find(said), std::string::npos) << key << ": " << error;
  }
}

TEST(CApi, RunsHaveConfigEntries) {
  Opened opened(defaults());
  treadle_run_options* options = nullptr;
  EXPECT_EQ(message_of(treadle_run_options_create(&options)), "");
  EXPECT_NE(message_of(treadle_run_options_add_config_entry(options, "treadle.check_finit", "all")).find("treadle.check_finite"),
            std::string::npos);
  EXPECT_EQ(message_of(treadle_run_options_add_config_entry(options, "treadle.check_finite", "all")), "");
  EXPECT_EQ(opened.run(options), "");
  EXPECT_EQ(message_of(treadle_run_options_add_config_entry(options, "treadle.terminate", "1")), "");
  EXPECT_NE(opened.run(options), "");
  treadle_run_options_release(options);
}

TEST(CApi, AProfileIsSavedByTheEndOfItsName) {
  Opened opened(defaults());
  const std::string folder = ::testing::TempDir();
  EXPECT_NE(message_of(treadle_session_save_profile(opened.session, (folder + "c.csv").c_str())).find("profiling was not started"),
            std::string::npos);
  EXPECT_EQ(message_of(treadle_session_start_profiling(opened.session)), "");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(opened.run(), "");
  EXPECT_NE(message_of(treadle_session_save_profile(opened.session, (folder + "c.pdf").c_str())).find(".pftrace"), std::string::npos);
  const std::string path = folder + "treadle_c_api.trace.json";
  EXPECT_EQ(message_of(treadle_session_save_profile(opened.session, path.c_str())), "");
  std::ifstream in(path);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  EXPECT_NE(text.find("ProfilerStep#2"), std::string::npos);
  EXPECT_EQ(text.find("ProfilerStep#3"), std::string::npos);
  std::remove(path.c_str());
}

TEST(CApi, RangesWithoutANameAreShownAsSuch) {
  Opened opened(defaults());
  treadle_profiler* profiler = nullptr;
  EXPECT_EQ(message_of(treadle_profiler_start(opened.session, nullptr, &profiler)), "");
  const uint64_t named = treadle_profile_range_begin();
  treadle_profile_range_end("named at its end", named);
  uint64_t elsewhere = 0;
  std::thread([&] { elsewhere = treadle_profile_range_begin(); }).join();
  treadle_profile_range_end("ended elsewhere", elsewhere);
  treadle_profile_range_end(nullptr, treadle_profile_range_begin());
  EXPECT_NE(treadle_profile_range_begin(), 0U);  // this range never ends
  EXPECT_NE(treadle_profile_range_begin_named(nullptr), 0U);
  treadle_profile_mark(nullptr);
  EXPECT_EQ(opened.run(), "");
  const std::string path = ::testing::TempDir() + "treadle_c_unnamed.json";
  EXPECT_EQ(message_of(treadle_profiler_save(profiler, path.c_str())), "");
  treadle_profiler_release(profiler);
  std::ifstream in(path);
  const nlohmann::json document = nlohmann::json::parse(in);
  std::remove(path.c_str());
  std::map<std::string, int> calls;
  for (const auto& range : document.at("ranges")) calls[range.at("name")] += range.at("calls").get<int>();
  EXPECT_EQ(calls, (std::map<std::string, int>{{"named at its end", 1}, {"ended elsewhere", 1}, {"(unnamed)", 3}}));
  EXPECT_EQ(document.at("marks").at("name"), (std::vector<std::string>{"(unnamed)"}));
}

TEST(CApi, ProfilersStandBesideEachOtherAndSeeRanges) {
  Opened opened(defaults());
  treadle_profiler_options options{};
  treadle_profiler *with_memory = nullptr, *plain = nullptr;
  EXPECT_NE(message_of(treadle_profiler_start(opened.session, &options, &with_memory)).find("struct_size"), std::string::npos);
  options.struct_size = offsetof(treadle_profiler_options, kernel_phases);  // the size that a program uses that was built with version 9
  options.kernel_phases = 7;                                                // beyond struct_size, so it must not be read
  EXPECT_EQ(message_of(treadle_profiler_start(opened.session, &options, &with_memory)), "");
  treadle_profiler_release(with_memory);
  options.struct_size = sizeof options;
  options.kernel_phases = 1;
  const std::string recording = ::testing::TempDir() + "treadle_c_recording";
  options.stream_to = recording.c_str();
  options.memory = 1;
  EXPECT_EQ(message_of(treadle_profiler_start(opened.session, &options, &with_memory)), "");
  EXPECT_EQ(message_of(treadle_profiler_start(opened.session, nullptr, &plain)), "");
  const uint64_t range = treadle_profile_range_begin();
  EXPECT_NE(range, 0U);
  EXPECT_NE(treadle_profile_range_begin_named("all of it"), 0U);  // this range never ends
  EXPECT_EQ(opened.run(), "");
  treadle_profile_mark("half way");
  treadle_profile_range_end("inference", range);
  EXPECT_EQ(message_of(treadle_profiler_set_recording(plain, 0)), "");
  EXPECT_EQ(opened.run(), "");
  auto saved = [](treadle_profiler* profiler) {
    const std::string path = ::testing::TempDir() + "treadle_c_profiler.json";
    EXPECT_EQ(message_of(treadle_profiler_save(profiler, path.c_str())), "");
    std::ifstream in(path);
    std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    std::remove(path.c_str());
    return text;
  };
  const std::string first = saved(with_memory), second = saved(plain);
  EXPECT_NE(first.find("\"recorded\":2"), std::string::npos);
  EXPECT_NE(second.find("\"recorded\":1"), std::string::npos);
  EXPECT_NE(first.find("\"measured\""), std::string::npos);
  EXPECT_EQ(second.find("\"measured\""), std::string::npos);
  EXPECT_NE(second.find("\"inference\""), std::string::npos);
  EXPECT_NE(second.find("\"all of it\""), std::string::npos);
  EXPECT_NE(second.find("\"peaks\""), std::string::npos) << "what the machine reaches";
  EXPECT_NE(second.find("\"half way\""), std::string::npos);
  EXPECT_EQ(message_of(treadle_profiler_flush(with_memory)), "");
  EXPECT_EQ(message_of(treadle_profiler_flush(plain)), "");
  treadle_profiler_release(with_memory);
  treadle_profiler_release(plain);
  EXPECT_EQ(treadle_profile_range_begin(), 0U);
  EXPECT_EQ(treadle_profile_range_begin_named("nobody records"), 0U);
  const std::string converted = ::testing::TempDir() + "treadle_c_converted.folded";
  EXPECT_EQ(message_of(treadle_profile_convert(recording.c_str(), converted.c_str())), "");
  std::ifstream stacks(converted);
  const std::string text((std::istreambuf_iterator<char>(stacks)), std::istreambuf_iterator<char>());
  EXPECT_NE(text.find("inference;all of it;run"), std::string::npos) << text;
  EXPECT_NE(message_of(treadle_profile_convert(converted.c_str(), recording.c_str())), "");
  std::remove(recording.c_str());
  std::remove(converted.c_str());
}

TEST(CApi, ASessionTellsItsMemoryAndKeepsToALimit) {
  treadle_session_options options = defaults();
  options.allocator = "nan+arena";
  options.memory_limit_bytes = 1 << 20;
  Opened opened(options);
  EXPECT_EQ(opened.run(), "");
  uint64_t bytes = 0, peak = 0;
  EXPECT_EQ(message_of(treadle_session_memory(opened.session, TREADLE_MEMORY_TOTAL, &bytes, &peak)), "");
  EXPECT_GT(bytes, 0U);
  EXPECT_GE(peak, bytes);
  EXPECT_EQ(message_of(treadle_session_memory(opened.session, TREADLE_MEMORY_IO, &bytes, nullptr)), "");
  EXPECT_EQ(bytes, 0U);
  uint64_t sum = 0;  // summed over all memory classes, by their numbers in the header
  for (int32_t memory_class = TREADLE_MEMORY_WEIGHTS; memory_class <= TREADLE_MEMORY_OPTIMIZER_STATE; ++memory_class) {
    EXPECT_EQ(message_of(treadle_session_memory(opened.session, memory_class, &bytes, nullptr)), "") << memory_class;
    if (memory_class != TREADLE_MEMORY_TOTAL) sum += bytes;
    EXPECT_TRUE(memory_class <= TREADLE_MEMORY_TOTAL || bytes == 0) << "nothing is trained";
  }
  EXPECT_EQ(message_of(treadle_session_memory(opened.session, TREADLE_MEMORY_TOTAL, &bytes, nullptr)), "");
  EXPECT_EQ(sum, bytes);
  EXPECT_NE(message_of(treadle_session_memory(opened.session, TREADLE_MEMORY_OPTIMIZER_STATE + 1, &bytes, nullptr)), "");
  EXPECT_NE(message_of(treadle_session_memory(opened.session, -1, &bytes, nullptr)), "");
  EXPECT_EQ(message_of(treadle_session_set_memory_limit(opened.session, 1)), "");
  EXPECT_NE(opened.run().find("at least"), std::string::npos);
}

TEST(CApi, ASessionIsPlacedByConfigEntries) {
  const treadle_config_entry entries[] = {{"treadle.device", "sim:0"}, {"treadle.argument_devices", "x=sim:1"}};
  treadle_session_options options = defaults();
  options.config_entries = entries;
  options.num_config_entries = 2;
  EXPECT_EQ(Opened(options).run(), "");
  std::string error;
  const treadle_config_entry wrong[] = {{"treadle.device", "abacus"}};
  options.config_entries = wrong;
  options.num_config_entries = 1;
  Opened refused(options, &error);
  EXPECT_NE(error.find("abacus"), std::string::npos);
  options.config_entries = nullptr;
  Opened without(options, &error);
  EXPECT_NE(error.find("config_entries is NULL"), std::string::npos);
}

TEST(CApi, AnUnknownAllocatorIsRefused) {
  treadle_session_options options = defaults();
  options.allocator = "magic";
  std::string error;
  Opened opened(options, &error);
  EXPECT_NE(error.find("there is no allocator \"magic\""), std::string::npos);
}

TEST(CApi, StatusesSayWhetherMemoryRanOut) {
  Opened opened(defaults());
  treadle_session_options options = defaults();
  options.memory_limit_bytes = 1;
  treadle_session* session = nullptr;
  treadle_value* outputs[2] = {};
  treadle_status* status = treadle_session_create(opened.model, &options, &session);
  if (!status) {
    const int64_t shape[] = {3};
    float data[] = {1, 2, 3};
    treadle_value* x = nullptr;
    EXPECT_EQ(message_of(treadle_tensor_borrow(TREADLE_FLOAT32, shape, 1, data, sizeof data, nullptr, nullptr, &x)), "");
    const char* names[] = {"x"};
    status = treadle_session_run(session, nullptr, names, &x, 1, nullptr, 2, outputs);
    treadle_value_release(x);
  }
  EXPECT_EQ(treadle_status_code(status), TREADLE_RESOURCE_EXHAUSTED);
  EXPECT_EQ(treadle_status_is_out_of_memory(status), 1) << treadle_status_message(status);
  treadle_status_release(status);
  treadle_session_release(session);
  EXPECT_EQ(treadle_status_is_out_of_memory(nullptr), 0);
  treadle_status* other = treadle_status_create(TREADLE_RESOURCE_EXHAUSTED, "no more bytes of memory");
  EXPECT_EQ(treadle_status_is_out_of_memory(other), 0);
  treadle_status_release(other);

  // A failed operation returns the caller's own error status with all its fields.
  treadle_engine* engine = nullptr;
  treadle_variable* variable = nullptr;
  EXPECT_EQ(message_of(treadle_engine_create(1, 0, &engine)), "");
  EXPECT_EQ(message_of(treadle_engine_variable(engine, &variable)), "");
  const auto starves = [](void*) { return treadle_status_create_out_of_memory("not for me"); };
  const treadle_variable* writes[] = {variable};
  EXPECT_EQ(message_of(treadle_engine_push(engine, starves, nullptr, nullptr, nullptr, 0, writes, 1, 0)), "");
  status = treadle_engine_wait_for(engine, variable);
  EXPECT_EQ(treadle_status_is_out_of_memory(status), 1) << treadle_status_message(status);
  EXPECT_STREQ(treadle_status_message(status), "not for me");
  treadle_status_release(status);
  treadle_variable_release(variable);
  treadle_engine_release(engine);
}

TEST(CApi, AClosedSessionRefusesRuns) {
  Opened opened(defaults());
  size_t unfinished = 1;
  EXPECT_EQ(message_of(treadle_session_close(opened.session, -1, &unfinished)), "");
  EXPECT_EQ(unfinished, 0U);
  EXPECT_EQ(treadle_session_runs_in_flight(opened.session), 0U);
  EXPECT_EQ(opened.run(), "the session is closed");
}

TEST(CApi, RunsTakeTagsAndTargets) {
  Opened opened(defaults());
  treadle_run_options* options = nullptr;
  EXPECT_EQ(message_of(treadle_run_options_create(&options)), "");
  EXPECT_EQ(message_of(treadle_run_options_set_tag(options, "the run")), "");
  EXPECT_EQ(message_of(treadle_run_options_add_target(options, "no such node")), "");
  EXPECT_NE(opened.run(options).find("no such node"), std::string::npos);
  treadle_run_options_release(options);
}

}  // namespace
