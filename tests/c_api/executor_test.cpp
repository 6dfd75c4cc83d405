// Tests executors through the C ABI: they read and write the caller's memory, and wrong calls return error statuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "tests/c_api/status.h"
#include "treadle/treadle.h"

namespace {

const std::string kSpirals = std::string(TREADLE_SOURCE_DIR) + "/examples/train/spirals.onnx";

using treadle::testing::message_of;

struct Value {
  treadle_value* value = nullptr;

  Value() = default;
  Value(std::vector<int64_t> shape, std::vector<float>& data) {
    EXPECT_EQ(message_of(treadle_tensor_borrow(TREADLE_FLOAT32, shape.data(), shape.size(), data.data(), data.size() * sizeof(float),
                                               nullptr, nullptr, &value)),
              "");
  }
  ~Value() { treadle_value_release(value); }
  Value(const Value&) = delete;
  Value& operator=(const Value&) = delete;
  float* data() const { return static_cast<float*>(treadle_tensor_data(value)); }
};

struct Opened {
  treadle_model* model = nullptr;
  treadle_executor* executor = nullptr;

  Opened() { EXPECT_EQ(message_of(treadle_model_load(kSpirals.c_str(), &model)), ""); }
  ~Opened() {
    treadle_executor_release(executor);
    treadle_model_release(model);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
};

treadle_bind_options bind_options() {
  treadle_bind_options options{};
  options.struct_size = sizeof options;
  return options;
}

// Returns the sum of all scores for the values that the bound arrays have.
double sum_of_scores(treadle_executor* executor) {
  EXPECT_EQ(message_of(treadle_executor_forward(executor, 0, nullptr)), "");
  Value scores;
  EXPECT_EQ(message_of(treadle_executor_output(executor, 0, &scores.value)), "");
  double sum = 0;
  for (size_t i = 0; i < treadle_tensor_num_elements(scores.value); ++i) sum += static_cast<double>(scores.data()[i]);
  return sum;
}

TEST(CApiExecutor, GradientsAreFiniteDifferencesInTheCallersMemory) {
  std::vector<float> points{0, 1, 1, 0, -1, 0.5F, 0.3F, -2}, to_points(8, 100);
  const Value point({4, 2}, points), to_point({4, 2}, to_points);
  Opened opened;
  const treadle_named_value argument{"point", point.value}, gradient{"point", to_point.value};
  const treadle_config_entry request{"layer1.weight", "add"};
  treadle_bind_options options = bind_options();
  options.gradients = &gradient, options.num_gradients = 1;
  options.requests = &request, options.num_requests = 1;
  ASSERT_EQ(message_of(treadle_executor_bind(opened.model, &argument, 1, &options, &opened.executor)), "");
  EXPECT_STREQ(treadle_executor_request(opened.executor, "layer1.weight"), "add");
  EXPECT_STREQ(treadle_executor_request(opened.executor, "point"), "write");
  EXPECT_EQ(treadle_executor_request(opened.executor, "poind"), nullptr);
  EXPECT_STREQ(treadle_executor_output_name(opened.executor, 0), "scores");
  EXPECT_EQ(treadle_executor_num_outputs(opened.executor), 1U);
  Value weight, to_weight;
  ASSERT_EQ(message_of(treadle_executor_argument(opened.executor, "layer1.weight", &weight.value)), "");
  ASSERT_EQ(message_of(treadle_executor_gradient(opened.executor, "layer1.weight", &to_weight.value)), "");
  for (int pass = 1; pass <= 2; ++pass) {
    ASSERT_EQ(message_of(treadle_executor_forward(opened.executor, 1, nullptr)), "");
    ASSERT_EQ(message_of(treadle_executor_backward(opened.executor, nullptr, 0)), "");
    for (auto [memory, derivative, factor] :
         {std::tuple{points.data() + 5, to_points[5], 1.0}, {weight.data() + 3, to_weight.data()[3], 1.0 * pass}}) {
      const float before = *memory, step = 1e-2F;
      *memory = before + step;
      const double above = sum_of_scores(opened.executor);
      *memory = before - step;
      const double below = sum_of_scores(opened.executor);
      *memory = before;
      EXPECT_NEAR(static_cast<double>(derivative), factor * (above - below) / (2 * static_cast<double>(step)), 2e-2) << pass;
    }
  }
}

TEST(CApiExecutor, ExecutorsOfSeveralShapesShareABuffer) {
  treadle_shared_buffer* buffer = nullptr;
  ASSERT_EQ(message_of(treadle_shared_buffer_create(&buffer)), "");
  EXPECT_EQ(treadle_shared_buffer_size(buffer), 0U);
  const int64_t extents[] = {4, 2}, fewer[] = {2, 2};
  const treadle_named_shape shape{"point", extents, 2}, small{"point", fewer, 2};
  treadle_bind_options options = bind_options();
  options.shared_buffer = buffer;
  Opened opened, other;
  ASSERT_EQ(message_of(treadle_executor_simple_bind(opened.model, &shape, 1, &options, &opened.executor)), "");
  const size_t held = treadle_shared_buffer_size(buffer);
  EXPECT_EQ(held, 2 * 4 * 2 * sizeof(float));  // the input and its gradient
  ASSERT_EQ(message_of(treadle_executor_simple_bind(opened.model, &small, 1, &options, &other.executor)), "");
  EXPECT_EQ(treadle_shared_buffer_size(buffer), held);
  treadle_shared_buffer_release(buffer);
  Value large_input, small_input;
  ASSERT_EQ(message_of(treadle_executor_argument(opened.executor, "point", &large_input.value)), "");
  ASSERT_EQ(message_of(treadle_executor_argument(other.executor, "point", &small_input.value)), "");
  EXPECT_EQ(large_input.data(), small_input.data());
  EXPECT_EQ(treadle_tensor_shape(small_input.value)[0], 2);
}

TEST(CApiExecutor, TakesDtypesOfInputs) {
  const int64_t extents[] = {4, 2};
  const treadle_named_shape shape{"point", extents, 2};
  treadle_config_entry dtype{"point", "float31"};
  treadle_bind_options options = bind_options();
  options.dtypes = &dtype, options.num_dtypes = 1;
  Opened opened;
  EXPECT_NE(message_of(treadle_executor_simple_bind(opened.model, &shape, 1, &options, &opened.executor)).find("no dtype \"float31\""),
            std::string::npos);
  dtype.value = "float64";
  EXPECT_NE(message_of(treadle_executor_simple_bind(opened.model, &shape, 1, &options, &opened.executor)).find("float32 only"),
            std::string::npos);
  dtype.value = "float32";
  EXPECT_EQ(message_of(treadle_executor_simple_bind(opened.model, &shape, 1, &options, &opened.executor)), "");
  treadle_executor* none = nullptr;
  EXPECT_NE(message_of(treadle_executor_bind(opened.model, nullptr, 0, &options, &none)).find("simple_bind"), std::string::npos);
}

TEST(CApiExecutor, StepsReshapesAndShares) {
  const int64_t extents[] = {4, 2}, fewer[] = {2, 2};
  const treadle_named_shape shape{"point", extents, 2}, small{"point", fewer, 2};
  Opened opened, other;
  ASSERT_EQ(message_of(treadle_executor_simple_bind(opened.model, &shape, 1, nullptr, &opened.executor)), "");
  size_t left = 0, step = 0;
  do ASSERT_EQ(message_of(treadle_executor_partial_forward(opened.executor, step++, 0, nullptr, &left)), "");
  while (left > 0);
  Value scores;
  EXPECT_EQ(message_of(treadle_executor_output(opened.executor, 0, &scores.value)), "");
  EXPECT_EQ(treadle_tensor_shape(scores.value)[0], 4);
  ASSERT_EQ(message_of(treadle_executor_reshape(opened.executor, &small, 1, 0, 0, &other.executor)), "");
  treadle_bind_options options = bind_options();
  options.shared = opened.executor;
  treadle_executor* sharing = nullptr;
  ASSERT_EQ(message_of(treadle_executor_simple_bind(opened.model, &shape, 1, &options, &sharing)), "");
  for (treadle_executor* executor : {other.executor, sharing}) {
    Value weight, theirs;
    ASSERT_EQ(message_of(treadle_executor_argument(opened.executor, "layer1.weight", &weight.value)), "");
    ASSERT_EQ(message_of(treadle_executor_argument(executor, "layer1.weight", &theirs.value)), "");
    EXPECT_EQ(weight.data(), theirs.data());
  }
  treadle_executor_release(sharing);
  EXPECT_EQ(treadle_executor_num_states(opened.executor), 0U);
  EXPECT_EQ(treadle_executor_state_name(opened.executor, 0), nullptr);
  std::map<std::string, int> names;
  for (size_t i = 0; i < treadle_executor_num_arguments(opened.executor); ++i) ++names[treadle_executor_argument_name(opened.executor, i)];
  EXPECT_EQ(names.size(), 7U);  // the input, and the weights and biases of three layers
}

TEST(CApiExecutor, PassesAreProfiled) {
  Opened opened;
  treadle_bind_options options = bind_options();
  const int64_t extents[] = {3, 2};
  const treadle_named_shape shape{"point", extents, 2};
  ASSERT_EQ(message_of(treadle_executor_simple_bind(opened.model, &shape, 1, &options, &opened.executor)), "");
  treadle_profiler *training = nullptr, *other = nullptr;
  EXPECT_EQ(message_of(treadle_executor_start_profiler(opened.executor, 1, nullptr, &training)), "");
  EXPECT_EQ(message_of(treadle_executor_start_profiler(opened.executor, 0, nullptr, &other)), "");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(message_of(treadle_executor_forward(opened.executor, 0, nullptr)), "");
  for (int i = 0; i < 2; ++i) EXPECT_EQ(message_of(treadle_executor_forward(opened.executor, 1, nullptr)), "");
  const auto recorded = [](treadle_profiler* profiler) {
    const std::string path = ::testing::TempDir() + "treadle_c_executor.json";
    EXPECT_EQ(message_of(treadle_profiler_save(profiler, path.c_str())), "");
    std::ifstream in(path);
    const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    std::remove(path.c_str());
    return text.substr(std::min(text.size(), text.find("\"recorded\":")), 12);
  };
  EXPECT_EQ(recorded(training), "\"recorded\":2");
  EXPECT_EQ(recorded(other), "\"recorded\":3");
  treadle_profiler_release(training);
  treadle_profiler_release(other);
  EXPECT_NE(message_of(treadle_executor_start_profiler(nullptr, 0, nullptr, &other)), "");
}

TEST(CApiExecutor, AMonitorSeesValuesAndMayEndAPass) {
  const int64_t extents[] = {4, 2};
  const treadle_named_shape shape{"point", extents, 2};
  struct Seen {
    int count = 0, released = 0;
    bool fails = false;
  } seen;
  {
    Opened opened;
    ASSERT_EQ(message_of(treadle_executor_simple_bind(opened.model, &shape, 1, nullptr, &opened.executor)), "");
    auto callback = [](void* context, const char* name, const treadle_value* value) -> treadle_status* {
      auto* own = static_cast<Seen*>(context);
      own->count += treadle_tensor_dtype(value) == TREADLE_FLOAT32 && name[0] != 0;
      return own->fails ? treadle_status_create(TREADLE_INVALID_ARGUMENT, "enough") : nullptr;
    };
    auto release = [](void* context) { ++static_cast<Seen*>(context)->released; };
    ASSERT_EQ(message_of(treadle_executor_set_monitor(opened.executor, callback, &seen, release, nullptr)), "");
    EXPECT_EQ(message_of(treadle_executor_forward(opened.executor, 1, nullptr)), "");
    EXPECT_GT(seen.count, 3);
    const int before = seen.count;
    EXPECT_EQ(message_of(treadle_executor_backward(opened.executor, nullptr, 0)), "");
    EXPECT_GT(seen.count, before);
    seen.fails = true;
    EXPECT_NE(message_of(treadle_executor_forward(opened.executor, 0, nullptr)).find("enough"), std::string::npos);
    EXPECT_EQ(message_of(treadle_executor_set_monitor(opened.executor, nullptr, nullptr, nullptr, nullptr)), "");
    EXPECT_EQ(message_of(treadle_executor_forward(opened.executor, 0, nullptr)), "");
  }
  EXPECT_EQ(seen.released, 1);
}

TEST(CApiExecutor, WrongCallsAreStatuses) {
  const int64_t extents[] = {4, 2};
  const treadle_named_shape shape{"point", extents, 2}, wrong{"pont", extents, 2};
  Opened opened;
  treadle_executor* none = nullptr;
  EXPECT_NE(message_of(treadle_executor_simple_bind(nullptr, &shape, 1, nullptr, &none)).find("model is NULL"), std::string::npos);
  EXPECT_NE(message_of(treadle_executor_simple_bind(opened.model, &wrong, 1, nullptr, &none)).find("is it point"), std::string::npos);
  EXPECT_NE(message_of(treadle_executor_bind(opened.model, nullptr, 0, nullptr, &none)).find("nothing is given for point"),
            std::string::npos);
  treadle_bind_options options = bind_options();
  options.request = "sometimes";
  EXPECT_NE(message_of(treadle_executor_simple_bind(opened.model, &shape, 1, &options, &none)).find("sometimes"), std::string::npos);
  ASSERT_EQ(message_of(treadle_executor_simple_bind(opened.model, &shape, 1, nullptr, &opened.executor)), "");
  const treadle_config_entry threads{"intra_op_num_threads", "1"};
  options = bind_options();
  options.shared = opened.executor, options.session = &threads, options.num_session = 1;
  EXPECT_NE(message_of(treadle_executor_simple_bind(opened.model, &shape, 1, &options, &none)).find("its own session options"),
            std::string::npos);
  EXPECT_NE(message_of(treadle_executor_backward(opened.executor, nullptr, 0)).find("is_train"), std::string::npos);
  treadle_value* value = nullptr;
  EXPECT_NE(message_of(treadle_executor_gradient(opened.executor, "weight", &value)).find("\"weight\""), std::string::npos);
  EXPECT_NE(message_of(treadle_executor_gradient_rows(opened.executor, "point", &value)).find("not by rows"), std::string::npos);
  EXPECT_NE(message_of(treadle_executor_output(opened.executor, 3, &value)).find("output 3 of 0"), std::string::npos);
  EXPECT_NE(message_of(treadle_executor_set_argument(opened.executor, "point", nullptr)).find("NULL"), std::string::npos);
  EXPECT_EQ(treadle_executor_output_name(nullptr, 0), nullptr);
  EXPECT_GE(treadle_abi_version(), 17U);
}

}  // namespace
