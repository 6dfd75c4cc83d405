// Shapes, quantisation and precision through the C ABI: results equal the C++ side's, and wrong calls return an error status.
#include "treadle/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "treadle/treadle.h"

namespace {

const std::string kDigits = std::string(TREADLE_SOURCE_DIR) + "/examples/digits/digits.onnx";

std::string told(treadle_status* status) {
  std::string message = treadle_status_message(status);
  treadle_status_release(status);
  return message;
}

class CQuantize : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(told(treadle_model_load(kDigits.c_str(), &model)), "");
    for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = 0.5F + 0.5F * std::sin(static_cast<float>(i));
    const int64_t shape[] = {2, 1, 8, 8};
    ASSERT_EQ(told(treadle_tensor_borrow(TREADLE_FLOAT32, shape, 4, pixels.data(), pixels.size() * 4, nullptr, nullptr, &image)), "");
  }
  void TearDown() override {
    treadle_value_release(image);
    treadle_model_release(model);
  }
  std::vector<float> scores_of(const treadle_model* of) const {
    treadle_session* session = nullptr;
    EXPECT_EQ(told(treadle_session_create(of, nullptr, &session)), "");
    treadle_value* scores = nullptr;
    EXPECT_EQ(told(treadle_session_run(session, nullptr, &name, &image, 1, nullptr, 1, &scores)), "");
    const auto* data = static_cast<const float*>(treadle_tensor_data(scores));
    std::vector<float> copy(data, data + treadle_tensor_num_elements(scores));
    treadle_value_release(scores);
    treadle_session_release(session);
    return copy;
  }
  treadle_samples samples() const {
    return {.struct_size = sizeof(treadle_samples), .input_names = &name, .num_inputs = 1, .values = &image, .num_samples = 1};
  }

  treadle_model* model = nullptr;
  treadle_value* image = nullptr;
  const char* name = "image";
  std::vector<float> pixels = std::vector<float>(128);
};

TEST_F(CQuantize, ShapesSayExtentsAndSymbols) {
  treadle_session* session = nullptr;
  ASSERT_EQ(told(treadle_session_create(model, nullptr, &session)), "");
  EXPECT_EQ(treadle_session_input_rank(session, 0), 4);
  EXPECT_EQ(treadle_session_input_extent(session, 0, 0), -1);
  EXPECT_STREQ(treadle_session_input_symbol(session, 0, 0), "batch");
  EXPECT_EQ(treadle_session_input_extent(session, 0, 3), 8);
  EXPECT_EQ(treadle_session_input_symbol(session, 0, 3), nullptr);
  EXPECT_EQ(treadle_session_output_extent(session, 0, 1), 10);
  EXPECT_EQ(treadle_session_output_rank(session, 1), -1) << "there is no second output";
  treadle_session_release(session);
}

TEST_F(CQuantize, EightBitWeightsComputeNearlyTheSame) {
  const treadle_quantize_options options{.struct_size = sizeof options,
                                         .mode = "qdq",
                                         .method = nullptr,
                                         .weight_bits = 0,
                                         .block_size = 0,
                                         .per_tensor = 0,
                                         .asymmetric = 0,
                                         .include = nullptr,
                                         .num_include = 0,
                                         .exclude = nullptr,
                                         .num_exclude = 0};
  const treadle_samples calibration = samples();
  treadle_model* small = nullptr;
  size_t count = 0;
  ASSERT_EQ(told(treadle_model_quantize(model, &options, &calibration, &count, &small)), "");
  EXPECT_GT(count, 0U);
  const std::vector<float> exact = scores_of(model), rounded = scores_of(small);
  ASSERT_EQ(exact.size(), rounded.size());
  float largest = 0, difference = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    largest = std::max(largest, std::abs(exact[i]));
    difference = std::max(difference, std::abs(exact[i] - rounded[i]));
  }
  EXPECT_GT(difference, 0);
  EXPECT_LT(difference, 0.1F * largest);
  treadle_model_release(small);
}

TEST_F(CQuantize, WrongOptionsAreStatuses) {
  treadle_quantize_options options{};
  treadle_model* small = nullptr;
  EXPECT_NE(told(treadle_model_quantize(model, &options, nullptr, nullptr, &small)).find("struct_size"), std::string::npos);
  options.struct_size = sizeof options;
  options.mode = "float";
  EXPECT_NE(told(treadle_model_quantize(model, &options, nullptr, nullptr, &small)).find("dynamic, qdq, weights"), std::string::npos);
  EXPECT_NE(told(treadle_model_quantize(model, nullptr, nullptr, nullptr, nullptr)).find("out is NULL"), std::string::npos);
}

TEST_F(CQuantize, PrecisionKeepsToItsBound) {
  const treadle_samples calibration = samples();
  treadle_precision_choice* choice = nullptr;
  ASSERT_EQ(told(treadle_choose_precision(model, 1e-12, &calibration, &choice)), "");
  EXPECT_STREQ(treadle_precision_name(choice), "float32");
  EXPECT_EQ(treadle_precision_error(choice), 0);
  treadle_precision_release(choice);
  EXPECT_NE(told(treadle_choose_precision(model, 1e-3, nullptr, &choice)), "");
}

}  // namespace
