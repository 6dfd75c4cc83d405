// Tests that wrong arguments to the C ABI give a status that names the function and the argument, before anything has happened.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "onnx/serialize.h"
#include "tests/c_api/status.h"
#include "tests/session/models.h"
#include "treadle/treadle.h"

namespace {

using treadle::testing::message_of;

constexpr int64_t kFour[] = {4};

treadle_value* four_floats() {
  treadle_value* value = nullptr;
  EXPECT_EQ(message_of(treadle_tensor_create(TREADLE_FLOAT32, kFour, 1, &value)), "");
  return value;
}

// Makes a model that computes y = -x.
treadle_model* negation() {
  treadle::testing::ModelBuilder b;
  b.input("x", {-1}).output("y", {-1}).node("Neg", {"x"}, {"y"});
  const std::string bytes = treadle::onnx::serialize_model(b.def());
  treadle_model* model = nullptr;
  EXPECT_EQ(message_of(treadle_model_from_bytes(bytes.data(), bytes.size(), nullptr, &model)), "");
  return model;
}

// Returns a handle of another kind than the function expects.
template <typename Handle>
Handle* disguised(treadle_value* value) {
  return reinterpret_cast<Handle*>(value);
}

TEST(CArguments, NullIsRefusedByName) {
  treadle_value* value = nullptr;
  EXPECT_EQ(message_of(treadle_tensor_create(TREADLE_FLOAT32, nullptr, 3, &value)), "treadle_tensor_create: shape is NULL");
  EXPECT_EQ(message_of(treadle_tensor_create(TREADLE_FLOAT32, kFour, 1, nullptr)), "treadle_tensor_create: out is NULL");
  EXPECT_EQ(message_of(treadle_tensor_from_strings(nullptr, 1, nullptr, 0, &value)), "treadle_tensor_from_strings: shape is NULL");
  EXPECT_EQ(message_of(treadle_tensor_from_strings(kFour, 1, nullptr, 4, &value)), "treadle_tensor_from_strings: strings is NULL");
  EXPECT_EQ(message_of(treadle_tensor_borrow(TREADLE_FLOAT32, kFour, 1, nullptr, 16, nullptr, nullptr, &value)),
            "treadle_tensor_borrow: data is NULL");
  EXPECT_EQ(message_of(treadle_model_load(nullptr, nullptr)), "treadle_model_load: path is NULL");
  EXPECT_EQ(message_of(treadle_partial_run_resume(nullptr, nullptr, 3, nullptr)), "treadle_partial_run_resume: run is NULL");
  EXPECT_EQ(value, nullptr);
}

TEST(CArguments, ElementsOfListsAreNamedByTheirPlace) {
  treadle_value* value = nullptr;
  const char* strings[] = {"a", "b", nullptr, "d"};
  EXPECT_EQ(message_of(treadle_tensor_from_strings(kFour, 1, strings, 4, &value)), "treadle_tensor_from_strings: strings[2] is NULL");
  const treadle_config_entry entries[] = {{"a", "b"}, {"c", nullptr}};
  treadle_session_options options{};
  options.struct_size = sizeof options;
  options.config_entries = entries;
  options.num_config_entries = 2;
  treadle_model* model = negation();
  treadle_session* session = nullptr;
  EXPECT_EQ(message_of(treadle_session_create(model, &options, &session)),
            "treadle_session_create: options.config_entries[1].value is NULL");
  treadle_model_release(model);
}

TEST(CArguments, NoListIsAsLongAsMemoryCannotBe) {
  treadle_value* value = nullptr;
  treadle_value* outputs[1] = {};
  const auto refused = [](treadle_status* status, const char* what) {
    EXPECT_NE(message_of(status).find(what), std::string::npos) << what;
  };
  for (const size_t count : {SIZE_MAX, SIZE_MAX / 2, static_cast<size_t>(-5)}) {
    refused(treadle_tensor_create(TREADLE_FLOAT32, kFour, count, &value), "treadle_tensor_create: shape has ");
    refused(treadle_session_run(nullptr, nullptr, nullptr, nullptr, 0, nullptr, count, outputs), "treadle_session_run: session is NULL");
    refused(treadle_partial_run_outputs(nullptr, count, outputs), "treadle_partial_run_outputs: run is NULL");
  }
}

TEST(CArguments, NumbersOutsideOfAnEnumAreRefused) {
  treadle_value* value = nullptr;
  for (const int number : {0, 29, 31}) {
    const std::string message = message_of(treadle_tensor_create(static_cast<treadle_dtype>(number), kFour, 1, &value));
    EXPECT_EQ(message, "treadle_tensor_create: dtype is " + std::to_string(number) + "; a treadle_dtype is expected");
  }
  constexpr int kFloat8 = 17;  // the number of ONNX's type FLOAT8E4M3FN
  ASSERT_EQ(message_of(treadle_tensor_create(static_cast<treadle_dtype>(kFloat8), kFour, 1, &value)), "");
  EXPECT_EQ(treadle_tensor_size_bytes(value), 4U);
  treadle_value_release(value);
  treadle_job* job = nullptr;
  EXPECT_EQ(message_of(treadle_job_create("job", 7, 100, 0, &job)), "treadle_job_create: job_class is 7; 0 or 1 is expected");
}

TEST(CArguments, HandlesOfOtherKindsAreRefused) {
  treadle_value* value = four_floats();
  treadle_session* session = nullptr;
  EXPECT_EQ(message_of(treadle_session_create(disguised<treadle_model>(value), nullptr, &session)),
            "treadle_session_create: model is a handle of another kind");
  EXPECT_EQ(treadle_session_num_inputs(disguised<treadle_session>(value)), 0U);
  EXPECT_EQ(treadle_session_input_name(disguised<treadle_session>(value), 0), nullptr);
  EXPECT_EQ(treadle_status_code(disguised<treadle_status>(value)), TREADLE_INTERNAL);
  treadle_model_release(disguised<treadle_model>(value));
  treadle_status_release(disguised<treadle_status>(value));
  treadle_run_options_set_terminate(disguised<treadle_run_options>(value), 1);
  EXPECT_EQ(treadle_tensor_num_elements(value), 4U) << "it was left alone";
  treadle_value_release(value);
}

// If a call fails, the caller still owns the memory.
TEST(CArguments, BorrowedMemoryIsReleasedOnceAndNotAfterAnError) {
  float elements[4] = {};
  int released = 0;
  const auto release = [](void* count) { ++*static_cast<int*>(count); };
  treadle_value* value = nullptr;
  EXPECT_NE(message_of(treadle_tensor_borrow(TREADLE_FLOAT32, kFour, 1, elements, sizeof elements, release, &released, nullptr)), "");
  EXPECT_NE(message_of(treadle_tensor_borrow(TREADLE_FLOAT64, kFour, 1, elements, sizeof elements, release, &released, &value)), "");
  EXPECT_EQ(released, 0);
  ASSERT_EQ(message_of(treadle_tensor_borrow(TREADLE_FLOAT32, kFour, 1, elements, sizeof elements, release, &released, &value)), "");
  treadle_value_release(value);
  EXPECT_EQ(released, 1);
}

TEST(CArguments, AnInputIsGivenOnce) {
  treadle_model* model = negation();
  treadle_session* session = nullptr;
  ASSERT_EQ(message_of(treadle_session_create(model, nullptr, &session)), "");
  treadle_value *value = four_floats(), *output = nullptr;
  const char* names[] = {"x", "x"};
  const treadle_value* inputs[] = {value, value};
  EXPECT_EQ(message_of(treadle_session_run(session, nullptr, names, inputs, 2, nullptr, 1, &output)), "\"x\" is given twice");
  EXPECT_EQ(output, nullptr);
  treadle_value_release(value);
  treadle_session_release(session);
  treadle_model_release(model);
}

TEST(CArguments, AStatusHasACodeOfAnError) {
  for (const int code : {0, 12}) {
    treadle_status* status = treadle_status_create(static_cast<treadle_code>(code), "odd");
    EXPECT_EQ(treadle_status_code(status), TREADLE_INTERNAL);
    EXPECT_EQ(message_of(status), "odd");
  }
}

TEST(CArguments, StructsWhoseSizeIsNotSetAreRefused) {
  treadle_model* model = negation();
  treadle_executor* executor = nullptr;
  treadle_bind_options options{};
  for (const size_t size : {size_t{0}, size_t{8}, size_t{1} << 20}) {
    options.struct_size = size;
    EXPECT_EQ(message_of(treadle_executor_bind(model, nullptr, 0, &options, &executor)),
              "treadle_executor_bind: options.struct_size is not set: it is " + std::to_string(size) + ", not the size of the struct");
  }
  treadle_model_release(model);
}

}  // namespace
