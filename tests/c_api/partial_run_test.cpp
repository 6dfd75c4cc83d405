// Tests partial runs through the C ABI: they stop between nodes, accept feeds later, and give outputs before the end.
#include <gtest/gtest.h>

#include <string>

#include "onnx/serialize.h"
#include "tests/c_api/status.h"
#include "tests/session/models.h"
#include "treadle/treadle.h"

namespace {

using treadle::testing::message_of;

/// A session whose model computes y = -x and z = -(y * late).
struct Opened {
  treadle_model* model = nullptr;
  treadle_session* session = nullptr;

  Opened() {
    treadle::testing::ModelBuilder b;
    b.input("x", {-1}).input("late", {3}).output("y", {-1}).output("z", {-1});
    b.node("Neg", {"x"}, {"y"}, "first").node("Mul", {"y", "late"}, {"product"}, "second").node("Neg", {"product"}, {"z"}, "third");
    const std::string bytes = treadle::onnx::serialize_model(b.def());
    treadle_session_options options{};
    options.struct_size = sizeof options;
    options.disable_optimization = 1;
    EXPECT_EQ(message_of(treadle_model_from_bytes(bytes.data(), bytes.size(), nullptr, &model)), "");
    EXPECT_EQ(message_of(treadle_session_create(model, &options, &session)), "");
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

float last_of(treadle_value* value) {
  const float last = static_cast<const float*>(treadle_tensor_data(value))[2];
  treadle_value_release(value);
  return last;
}

TEST(CApi, APartialRunTakesFeedsLaterAndGivesOutputsEarly) {
  const Opened opened;
  const Value x;
  const char *names[] = {"x"}, *y[] = {"y"}, *z[] = {"z"};
  treadle_partial_run* run = nullptr;
  ASSERT_EQ(message_of(treadle_partial_run_create(opened.session, names, &x.value, 1, &run)), "");
  int finished = 1;
  treadle_value* output = nullptr;
  EXPECT_NE(message_of(treadle_partial_run_fetch(run, y, 1, &output)).find("has not come as far"), std::string::npos);
  EXPECT_EQ(output, nullptr);
  EXPECT_EQ(message_of(treadle_partial_run_advance(run, &finished)), "");
  EXPECT_EQ(finished, 0);
  size_t yielded = 7;
  EXPECT_EQ(message_of(treadle_partial_run_num_yielded(run, &yielded)), "");
  EXPECT_EQ(yielded, 0U);
  ASSERT_EQ(message_of(treadle_partial_run_fetch(run, y, 1, &output)), "");
  EXPECT_EQ(last_of(output), -3);
  EXPECT_NE(message_of(treadle_partial_run_advance(run, &finished)).find("\"late\""), std::string::npos);
  EXPECT_NE(message_of(treadle_partial_run_feed(run, "nothing", x.value)).find("its inputs are: x, late"), std::string::npos);
  EXPECT_NE(message_of(treadle_partial_run_feed(run, "x", x.value)).find("it has been fed"), std::string::npos);
  EXPECT_EQ(message_of(treadle_partial_run_feed(run, "late", x.value)), "");
  size_t left = 0;
  EXPECT_EQ(message_of(treadle_partial_run_advance_steps(run, 1, &left)), "");
  EXPECT_EQ(left, 1U);
  EXPECT_EQ(message_of(treadle_partial_run_advance_steps(run, 5, nullptr)), "");
  ASSERT_EQ(message_of(treadle_partial_run_fetch(run, z, 1, &output)), "");
  EXPECT_EQ(last_of(output), 9);
  treadle_partial_run_release(run);
}

TEST(CApi, APartialRunHasOptionsAndRunsUntilANode) {
  const Opened opened;
  const Value x;
  const char *names[] = {"x", "late"}, *target[] = {"product"};
  const treadle_value* values[] = {x.value, x.value};
  treadle_run_options* options = nullptr;
  ASSERT_EQ(message_of(treadle_run_options_create(&options)), "");
  EXPECT_EQ(message_of(treadle_run_options_add_target(options, "product")), "");
  treadle_partial_run* run = nullptr;
  ASSERT_EQ(message_of(treadle_partial_run_create_with_options(opened.session, options, names, values, 2, &run)), "");
  int finished = 1;
  EXPECT_NE(message_of(treadle_partial_run_advance_until(run, "nothing", &finished)).find("\"nothing\""), std::string::npos);
  EXPECT_EQ(message_of(treadle_partial_run_advance_until(run, "second", &finished)), "");
  EXPECT_EQ(finished, 0);
  treadle_value* output = nullptr;
  ASSERT_EQ(message_of(treadle_partial_run_fetch(run, target, 1, &output)), "");
  EXPECT_EQ(last_of(output), -9);
  treadle_run_options_set_terminate(options, 1);
  EXPECT_NE(message_of(treadle_partial_run_advance(run, &finished)).find("cancelled"), std::string::npos);
  treadle_partial_run_release(run);
  treadle_run_options_release(options);
}

TEST(CApi, APartialRunRefusesWhatIsNull) {
  const Opened opened;
  treadle_partial_run* run = nullptr;
  EXPECT_NE(message_of(treadle_partial_run_create(nullptr, nullptr, nullptr, 0, &run)).find("session is NULL"), std::string::npos);
  ASSERT_EQ(message_of(treadle_partial_run_create(opened.session, nullptr, nullptr, 0, &run)).substr(0, 7), "input \"");
  const Value x;
  const char* names[] = {"x"};
  ASSERT_EQ(message_of(treadle_partial_run_create(opened.session, names, &x.value, 1, &run)), "");
  EXPECT_NE(message_of(treadle_partial_run_feed(run, nullptr, x.value)).find("NULL"), std::string::npos);
  EXPECT_NE(message_of(treadle_partial_run_feed(run, "late", nullptr)).find("NULL"), std::string::npos);
  EXPECT_NE(message_of(treadle_partial_run_fetch(run, nullptr, 1, nullptr)).find("NULL"), std::string::npos);
  EXPECT_NE(message_of(treadle_partial_run_advance(run, nullptr)).find("NULL"), std::string::npos);
  treadle_partial_run_release(run);
}

}  // namespace
