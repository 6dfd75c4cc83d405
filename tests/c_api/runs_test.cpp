// Tests bound, stateful and asynchronous runs through the C ABI.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "onnx/serialize.h"
#include "tests/c_api/status.h"
#include "tests/session/models.h"
#include "treadle/treadle.h"

namespace {

using treadle::testing::message_of;
using treadle::testing::ModelBuilder;

struct Opened {
  treadle_model* model = nullptr;
  treadle_session* session = nullptr;

  explicit Opened(ModelBuilder builder) {
    const std::string bytes = treadle::onnx::serialize_model(builder.def());
    EXPECT_EQ(message_of(treadle_model_from_bytes(bytes.data(), bytes.size(), nullptr, &model)), "");
    EXPECT_EQ(message_of(treadle_session_create(model, nullptr, &session)), "");
  }
  ~Opened() {
    treadle_session_release(session);
    treadle_model_release(model);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
};

struct Value {
  float data[3] = {1, 2, 3};
  treadle_value* value = nullptr;
  Value() {
    const int64_t shape[] = {3};
    EXPECT_EQ(message_of(treadle_tensor_borrow(TREADLE_FLOAT32, shape, 1, data, sizeof data, nullptr, nullptr, &value)), "");
  }
  ~Value() { treadle_value_release(value); }
  Value(const Value&) = delete;
  Value& operator=(const Value&) = delete;
};

// Returns the elements, and releases the value.
std::vector<float> taken(treadle_value* value) {
  const auto* first = static_cast<const float*>(treadle_tensor_data(value));
  std::vector<float> elements(first, first + treadle_tensor_num_elements(value));
  treadle_value_release(value);
  return elements;
}

// total = sum + x, and twice = 2 x.
ModelBuilder summing() {
  ModelBuilder b;
  b.input("x", {3}).input("sum", {3}).output("total", {3}).output("twice", {3});
  b.node("Add", {"sum", "x"}, {"total"}).node("Add", {"x", "x"}, {"twice"});
  return b;
}

TEST(CApi, ABindingWritesToTheMemoryThatItIsGiven) {
  const Opened opened(treadle::testing::two_outputs());
  Value x, y;
  treadle_io_binding* binding = nullptr;
  ASSERT_EQ(message_of(treadle_io_binding_create(opened.session, &binding)), "");
  ASSERT_EQ(message_of(treadle_io_binding_bind_input(binding, "x", x.value)), "");
  ASSERT_EQ(message_of(treadle_io_binding_bind_output(binding, "y", y.value)), "");
  ASSERT_EQ(message_of(treadle_io_binding_bind_output(binding, "z", nullptr)), "");
  EXPECT_EQ(treadle_io_binding_num_outputs(binding), 2U);
  ASSERT_EQ(message_of(treadle_io_binding_run(binding, nullptr)), "");
  EXPECT_EQ(std::vector<float>(y.data, y.data + 3), (std::vector<float>{2, 6, 12}));
  x.data[0] = 4;  // the input is read where it lies
  ASSERT_EQ(message_of(treadle_io_binding_run(binding, nullptr)), "");
  EXPECT_EQ(y.data[0], 20);
  treadle_value* z = nullptr;
  ASSERT_EQ(message_of(treadle_io_binding_output(binding, 1, &z)), "");
  EXPECT_EQ(taken(z), (std::vector<float>{-4, -2, -3}));
  EXPECT_NE(message_of(treadle_io_binding_output(binding, 2, &z)).find("2 of 2"), std::string::npos);
  treadle_io_binding_clear_outputs(binding);
  EXPECT_EQ(treadle_io_binding_num_outputs(binding), 0U);
  EXPECT_NE(message_of(treadle_io_binding_bind_input(binding, "nothing", x.value)).find("nothing"), std::string::npos);
  EXPECT_NE(message_of(treadle_io_binding_bind_output_to_device(binding, "z", "abacus")).find("abacus"), std::string::npos);
  treadle_io_binding_clear_inputs(binding);
  treadle_io_binding_release(binding);
}

TEST(CApi, AnOutputThatNoRunHasComputedIsAnError) {
  const Opened opened(treadle::testing::two_outputs());
  treadle_io_binding* binding = nullptr;
  ASSERT_EQ(message_of(treadle_io_binding_create(opened.session, &binding)), "");
  ASSERT_EQ(message_of(treadle_io_binding_bind_output(binding, "z", nullptr)), "");
  treadle_value* z = nullptr;
  EXPECT_NE(message_of(treadle_io_binding_output(binding, 0, &z)), "");
  EXPECT_EQ(z, nullptr);
  treadle_io_binding_release(binding);
}

TEST(CApi, StatesPassFromRunToRun) {
  const Opened opened(summing());
  const Value x;
  const char *names[] = {"x"}, *twice[] = {"twice"};
  const treadle_state_pair pairs[] = {{"sum", "total"}};
  treadle_stateful_run* run = nullptr;
  ASSERT_EQ(message_of(treadle_stateful_run_create(opened.session, pairs, 1, nullptr, nullptr, 0, &run)), "");
  treadle_value *output = nullptr, *state = nullptr;
  for (int step = 0; step < 3; ++step) {
    ASSERT_EQ(message_of(treadle_stateful_run_run(run, nullptr, names, &x.value, 1, step == 0 ? nullptr : twice, 1, &output)), "");
    EXPECT_EQ(taken(output), (std::vector<float>{2, 4, 6}));
  }
  ASSERT_EQ(message_of(treadle_stateful_run_state(run, "sum", &state)), "");
  EXPECT_EQ(taken(state), (std::vector<float>{3, 6, 9}));
  ASSERT_EQ(message_of(treadle_stateful_run_set_state(run, "sum", x.value)), "");
  ASSERT_EQ(message_of(treadle_stateful_run_run(run, nullptr, names, &x.value, 1, twice, 1, &output)), "");
  treadle_value_release(output);
  ASSERT_EQ(message_of(treadle_stateful_run_state(run, "sum", &state)), "");
  EXPECT_EQ(taken(state), (std::vector<float>{2, 4, 6}));
  treadle_stateful_run_release(run);

  const treadle_state_pair half[] = {{"sum", nullptr}}, unknown[] = {{"sum", "nothing"}};
  EXPECT_EQ(message_of(treadle_stateful_run_create(opened.session, half, 1, nullptr, nullptr, 0, &run)),
            "treadle_stateful_run_create: pairs[0].output is NULL");
  EXPECT_NE(message_of(treadle_stateful_run_create(opened.session, unknown, 1, nullptr, nullptr, 0, &run)).find("nothing"),
            std::string::npos);
}

TEST(CApi, InitialStatesAreGivenByName) {
  const Opened opened(summing());
  const Value x, initial;
  const char *names[] = {"x"}, *states[] = {"sum"};
  const treadle_state_pair pairs[] = {{"sum", "total"}};
  treadle_stateful_run* run = nullptr;
  ASSERT_EQ(message_of(treadle_stateful_run_create(opened.session, pairs, 1, states, &initial.value, 1, &run)), "");
  treadle_value *output = nullptr, *state = nullptr;
  ASSERT_EQ(message_of(treadle_stateful_run_run(run, nullptr, names, &x.value, 1, nullptr, 1, &output)), "");
  treadle_value_release(output);
  ASSERT_EQ(message_of(treadle_stateful_run_state(run, "sum", &state)), "");
  EXPECT_EQ(taken(state), (std::vector<float>{2, 4, 6}));
  treadle_stateful_run_release(run);
}

TEST(CApi, AnAsynchronousRunHandsOutItsOutputsOrItsError) {
  const Opened opened(treadle::testing::two_outputs());
  const char *names[] = {"x"}, *wrong[] = {"nothing"};
  treadle_async_run *run = nullptr, *failing = nullptr;
  {
    const Value x;  // the run keeps the value; its memory lives to the end of this block
    ASSERT_EQ(message_of(treadle_session_run_async(opened.session, names, &x.value, 1, nullptr, 2, &run)), "");
    int finished = 0;
    ASSERT_EQ(message_of(treadle_async_run_wait(run, -1, &finished)), "");
    EXPECT_EQ(finished, 1);
    ASSERT_EQ(message_of(treadle_session_run_async(opened.session, wrong, &x.value, 1, nullptr, 2, &failing)), "");
    ASSERT_EQ(message_of(treadle_async_run_wait(failing, -1, &finished)), "");
  }
  treadle_value* outputs[2] = {};
  ASSERT_EQ(message_of(treadle_async_run_outputs(run, 2, outputs)), "");
  EXPECT_EQ(taken(outputs[0]), (std::vector<float>{2, 6, 12}));
  EXPECT_EQ(taken(outputs[1]), (std::vector<float>{-1, -2, -3}));
  EXPECT_NE(message_of(treadle_async_run_outputs(failing, 2, outputs)).find("nothing"), std::string::npos);
  EXPECT_EQ(outputs[0], nullptr);
  treadle_async_run_release(run);
  treadle_async_run_release(failing);
}

TEST(CApi, WaitingForARunEndsWithItsTime) {
  const Opened opened(treadle::testing::endless_loop());
  const int64_t zero = 0;
  treadle_value* start = nullptr;
  ASSERT_EQ(message_of(treadle_tensor_borrow(TREADLE_INT64, nullptr, 0, const_cast<int64_t*>(&zero), 8, nullptr, nullptr, &start)), "");
  const char* names[] = {"start"};
  treadle_async_run* run = nullptr;
  ASSERT_EQ(message_of(treadle_session_run_async(opened.session, names, &start, 1, nullptr, 1, &run)), "");
  int finished = 1;
  ASSERT_EQ(message_of(treadle_async_run_wait(run, 1, &finished)), "");
  EXPECT_EQ(finished, 0);
  while (treadle_session_runs_in_flight(opened.session) == 0) {
  }
  ASSERT_EQ(message_of(treadle_session_close(opened.session, -1, nullptr)), "");
  treadle_value* total = nullptr;
  treadle_status* status = treadle_async_run_outputs(run, 1, &total);
  EXPECT_EQ(treadle_status_code(status), TREADLE_CANCELLED);
  treadle_status_release(status);
  treadle_async_run_release(run);
  treadle_value_release(start);
}

}  // namespace
