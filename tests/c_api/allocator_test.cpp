// Tests the caller's own allocators, and engines, through the C ABI.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <string>

#include "onnx/serialize.h"
#include "tests/c_api/status.h"
#include "tests/session/models.h"
#include "treadle/treadle.h"

namespace {

using treadle::testing::message_of;

/// An allocator that counts its calls, and on request fails or returns misaligned addresses.
struct Source {
  std::atomic<int> allocated{0}, freed{0}, released{0};
  std::atomic<int> fails_after{1 << 30};
  std::atomic<size_t> skew{0};

  static void* allocate(void* context, size_t size_bytes, int32_t /*memory_class*/) {
    auto& self = *static_cast<Source*>(context);
    if (self.allocated >= self.fails_after) return nullptr;
    ++self.allocated;
    return static_cast<char*>(std::aligned_alloc(64, (size_bytes + 127) / 64 * 64)) + self.skew;
  }
  static void free(void* context, void* data, size_t /*size_bytes*/, int32_t /*memory_class*/) {
    auto& self = *static_cast<Source*>(context);
    ++self.freed;
    std::free(static_cast<char*>(data) - self.skew);
  }
  static void release(void* context) { ++static_cast<Source*>(context)->released; }

  treadle_allocator* make() {
    treadle_allocator_callbacks calls{};
    calls.struct_size = sizeof calls;
    calls.context = this;
    calls.name = "counting";
    calls.allocate = allocate;
    calls.free = free;
    calls.release = release;
    treadle_allocator* made = nullptr;
    EXPECT_EQ(message_of(treadle_allocator_create(&calls, &made)), "");
    return made;
  }
};

treadle_model* model() {
  const std::string bytes = treadle::onnx::serialize_model(treadle::testing::two_outputs().def());
  treadle_model* made = nullptr;
  EXPECT_EQ(message_of(treadle_model_from_bytes(bytes.data(), bytes.size(), nullptr, &made)), "");
  return made;
}

std::string run(const treadle_session* session, const treadle_run_options* options, treadle_value** outputs) {
  const int64_t shape[] = {3};
  float data[] = {1, 2, 3};
  treadle_value* x = nullptr;
  EXPECT_EQ(message_of(treadle_tensor_borrow(TREADLE_FLOAT32, shape, 1, data, sizeof data, nullptr, nullptr, &x)), "");
  const char* names[] = {"x"};
  std::string message = message_of(treadle_session_run(session, options, names, &x, 1, nullptr, 2, outputs));
  treadle_value_release(x);
  return message;
}

TEST(CAllocator, GivesASessionItsMemory) {
  Source source;
  treadle_allocator* allocator = source.make();
  treadle_model* its_model = model();
  treadle_session_options options{};
  options.struct_size = sizeof options;
  options.custom_allocator = allocator;
  treadle_session* session = nullptr;
  ASSERT_EQ(message_of(treadle_session_create(its_model, &options, &session)), "");
  treadle_allocator_release(allocator);  // the session holds a reference
  treadle_value* outputs[2] = {};
  ASSERT_EQ(run(session, nullptr, outputs), "");
  EXPECT_EQ(static_cast<const float*>(treadle_tensor_data(outputs[0]))[2], 12);
  EXPECT_GE(source.allocated, 2);
  treadle_session_release(session);
  EXPECT_EQ(source.released, 0) << "the outputs live on";
  EXPECT_EQ(static_cast<const float*>(treadle_tensor_data(outputs[0]))[2], 12);
  for (treadle_value* output : outputs) treadle_value_release(output);
  EXPECT_EQ(source.freed, source.allocated);
  EXPECT_EQ(source.released, 1);
  treadle_model_release(its_model);
}

TEST(CAllocator, GivesOneOutputItsMemoryAndCounts) {
  Source source;
  treadle_allocator* allocator = source.make();
  treadle_model* its_model = model();
  treadle_session* session = nullptr;
  ASSERT_EQ(message_of(treadle_session_create(its_model, nullptr, &session)), "");
  treadle_run_options* options = nullptr;
  ASSERT_EQ(message_of(treadle_run_options_create(&options)), "");
  ASSERT_EQ(message_of(treadle_run_options_set_output_allocator(options, "z", allocator)), "");
  treadle_value* outputs[2] = {};
  ASSERT_EQ(run(session, options, outputs), "");
  EXPECT_EQ(source.allocated, 1);
  uint64_t bytes = 0, peak = 0, count = 0;
  ASSERT_EQ(message_of(treadle_allocator_statistics(allocator, TREADLE_MEMORY_IO, &bytes, &peak, &count)), "");
  EXPECT_GE(bytes, 3 * sizeof(float));
  EXPECT_EQ(count, 1U);
  for (treadle_value* output : outputs) treadle_value_release(output);
  ASSERT_EQ(message_of(treadle_allocator_statistics(allocator, TREADLE_MEMORY_TOTAL, &bytes, &peak, nullptr)), "");
  EXPECT_EQ(bytes, 0U);
  EXPECT_GE(peak, 3 * sizeof(float));
  EXPECT_NE(message_of(treadle_allocator_statistics(allocator, 99, &bytes, nullptr, nullptr)), "");
  ASSERT_EQ(message_of(treadle_run_options_set_output_allocator(options, "zz", allocator)), "");
  EXPECT_NE(run(session, options, outputs).find("\"zz\" is no output of this run; is it z"), std::string::npos);
  treadle_run_options_release(options);
  treadle_session_release(session);
  treadle_model_release(its_model);
  treadle_allocator_release(allocator);
  EXPECT_EQ(source.released, 1);
}

TEST(CAllocator, ThatFailsEndsTheRunAndNotTheSession) {
  Source source;
  treadle_allocator* allocator = source.make();
  treadle_model* its_model = model();
  treadle_session_options options{};
  options.struct_size = sizeof options;
  options.custom_allocator = allocator;
  treadle_session* session = nullptr;
  ASSERT_EQ(message_of(treadle_session_create(its_model, &options, &session)), "");
  const int before = source.allocated;
  bool failed = false;
  for (int allowed = 0;; ++allowed) {  // each allocation of a run fails once
    source.fails_after = source.allocated + allowed;
    treadle_value* outputs[2] = {};
    const std::string message = run(session, nullptr, outputs);
    for (treadle_value* output : outputs) treadle_value_release(output);
    if (message.empty()) break;
    failed = true;
    EXPECT_NE(message.find("cannot allocate"), std::string::npos) << message;
    ASSERT_LT(allowed, 100);
  }
  EXPECT_TRUE(failed);
  EXPECT_GT(source.allocated, before);
  source.fails_after = 1 << 30;
  treadle_session_release(session);
  treadle_allocator_release(allocator);
  treadle_model_release(its_model);
  EXPECT_EQ(source.freed, source.allocated);
  EXPECT_EQ(source.released, 1);
}

TEST(CAllocator, ThatMisalignsIsAnError) {
  Source source;
  source.skew = 8;
  treadle_allocator* allocator = source.make();
  treadle_model* its_model = model();
  treadle_session* session = nullptr;
  ASSERT_EQ(message_of(treadle_session_create(its_model, nullptr, &session)), "");
  treadle_run_options* options = nullptr;
  ASSERT_EQ(message_of(treadle_run_options_create(&options)), "");
  ASSERT_EQ(message_of(treadle_run_options_set_output_allocator(options, "z", allocator)), "");
  treadle_value* outputs[2] = {};
  EXPECT_NE(run(session, options, outputs).find("no multiple of 64"), std::string::npos);
  EXPECT_EQ(source.freed, source.allocated);
  treadle_run_options_release(options);
  treadle_session_release(session);
  treadle_model_release(its_model);
  treadle_allocator_release(allocator);
  treadle_allocator_callbacks calls{};
  EXPECT_NE(message_of(treadle_allocator_create(&calls, &allocator)), "");
  calls.struct_size = sizeof calls;
  EXPECT_NE(message_of(treadle_allocator_create(&calls, &allocator)).find("callbacks.allocate is NULL"), std::string::npos);
}

struct Step {
  int* value;
  int factor, summand;
  int released = 0;
  static treadle_status* run(void* context) {
    auto& self = *static_cast<Step*>(context);
    *self.value = *self.value * self.factor + self.summand;
    return self.factor == 0 ? treadle_status_create(TREADLE_NOT_FOUND, "no factor") : nullptr;
  }
  static void release(void* context) { ++static_cast<Step*>(context)->released; }
};

TEST(CEngine, OrdersOperationsByTheirVariables) {
  for (int naive : {0, 1}) {
    treadle_engine* engine = nullptr;
    ASSERT_EQ(message_of(treadle_engine_create(naive, 2, &engine)), "");
    treadle_variable* variable = nullptr;
    ASSERT_EQ(message_of(treadle_engine_variable(engine, &variable)), "");
    int value = 1;
    Step steps[] = {{&value, 3, 1}, {&value, 5, 2}, {&value, 0, 7}, {&value, 2, 0}};
    for (int i : {0, 1}) {
      ASSERT_EQ(message_of(treadle_engine_push(engine, Step::run, &steps[i], Step::release, nullptr, 0, &variable, 1, 0)), "");
    }
    EXPECT_EQ(message_of(treadle_engine_wait_for(engine, variable)), "");
    EXPECT_EQ(value, 22);
    EXPECT_EQ(treadle_variable_version(variable), 2U);
    // If an operation fails, its failure is stored in the variable that it writes, and operations that read this variable do not run.
    ASSERT_EQ(message_of(treadle_engine_push(engine, Step::run, &steps[2], Step::release, nullptr, 0, &variable, 1, 0)), "");
    ASSERT_EQ(message_of(treadle_engine_push(engine, Step::run, &steps[3], Step::release, &variable, 1, nullptr, 0, 0)), "");
    treadle_status* status = treadle_engine_wait_all(engine);
    EXPECT_EQ(treadle_status_code(status), TREADLE_NOT_FOUND);
    EXPECT_EQ(message_of(status), "no factor");
    EXPECT_EQ(value, 7);
    size_t pending = 1;
    EXPECT_EQ(message_of(treadle_engine_num_pending(engine, &pending)), "");
    EXPECT_EQ(pending, 0U);
    EXPECT_NE(message_of(treadle_engine_push(engine, nullptr, nullptr, Step::release, nullptr, 0, nullptr, 0, 0)), "");
    treadle_variable_release(variable);
    treadle_engine_release(engine);
    for (const Step& step : steps) EXPECT_EQ(step.released, 1);
  }
}

struct Draw {
  treadle_scratch* scratch;
  treadle_random_stream* stream;
  double sum = 0;
  static treadle_status* run(void* context) {
    auto& self = *static_cast<Draw*>(context);
    void* data = nullptr;
    if (treadle_status* status = treadle_scratch_get(self.scratch, 10 * sizeof(double), &data)) return status;
    if (treadle_status* status = treadle_random_stream_uniform(self.stream, static_cast<double*>(data), 10)) return status;
    for (int i = 0; i < 10; ++i) self.sum += static_cast<double*>(data)[i];
    return nullptr;
  }
};

TEST(CEngine, HasScratchSpaceAndRandomStreams) {
  double sums[2];
  for (int naive : {0, 1}) {
    treadle_engine* engine = nullptr;
    ASSERT_EQ(message_of(treadle_engine_create(naive, 2, &engine)), "");
    Draw draw{};
    ASSERT_EQ(message_of(treadle_engine_scratch(engine, &draw.scratch)), "");
    ASSERT_EQ(message_of(treadle_engine_random_stream(engine, 5, &draw.stream)), "");
    treadle_variable* variables[2] = {};
    ASSERT_EQ(message_of(treadle_scratch_variable(draw.scratch, &variables[0])), "");
    ASSERT_EQ(message_of(treadle_random_stream_variable(draw.stream, &variables[1])), "");
    ASSERT_EQ(message_of(treadle_engine_push(engine, Draw::run, &draw, nullptr, nullptr, 0, variables, 2, 0)), "");
    EXPECT_EQ(message_of(treadle_engine_wait_all(engine)), "");
    EXPECT_GT(draw.sum, 0);
    EXPECT_LT(draw.sum, 10);
    sums[naive] = draw.sum;
    ASSERT_EQ(message_of(treadle_engine_push(engine, Draw::run, &draw, nullptr, nullptr, 0, variables, 1, 0)), "");
    EXPECT_NE(message_of(treadle_engine_wait_all(engine)).find("a random stream is used outside"), std::string::npos);
    void* data = nullptr;
    EXPECT_NE(message_of(treadle_scratch_get(draw.scratch, 1, &data)), "");
    for (treadle_variable* variable : variables) treadle_variable_release(variable);
    treadle_scratch_release(draw.scratch);
    treadle_random_stream_release(draw.stream);
    treadle_engine_release(engine);
  }
  EXPECT_EQ(sums[0], sums[1]);
}

}  // namespace
