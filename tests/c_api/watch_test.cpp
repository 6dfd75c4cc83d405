// Tests what a program learns of models, values and runs through the C ABI: metadata, containers, monitors, hooks and the log.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/logging.h"
#include "onnx/serialize.h"
#include "tests/c_api/status.h"
#include "tests/session/models.h"
#include "treadle/treadle.h"

namespace {

using treadle::DType;
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

  // Runs with x = {1, 2, 3}. @return the first output; null after an error, whose message goes to `error`
  treadle_value* run(std::string* error = nullptr) const {
    const int64_t shape[] = {3};
    float data[] = {1, 2, 3};
    treadle_value *x = nullptr, *outputs[2] = {};
    EXPECT_EQ(message_of(treadle_tensor_borrow(TREADLE_FLOAT32, shape, 1, data, sizeof data, nullptr, nullptr, &x)), "");
    const char* names[] = {"x"};
    const size_t count = treadle_session_num_outputs(session);
    const std::string message = message_of(treadle_session_run(session, nullptr, names, &x, 1, nullptr, count, outputs));
    if (error)
      *error = message;
    else
      EXPECT_EQ(message, "");
    if (count > 1) treadle_value_release(outputs[1]);
    treadle_value_release(x);
    return outputs[0];
  }
  void run_only() const { treadle_value_release(run()); }
};

TEST(CApi, AModelTellsItsMetadata) {
  ModelBuilder b = treadle::testing::two_outputs();
  b.def().producer_name = "a tool";
  b.def().model_version = 7;
  b.def().metadata_props = {{"classes", "cat\ndog"}, {"author", "someone"}};
  const Opened opened(std::move(b));
  EXPECT_STREQ(treadle_model_metadata(opened.model, "producer_name"), "a tool");
  EXPECT_STREQ(treadle_model_metadata(opened.model, "graph_name"), "test");
  EXPECT_STREQ(treadle_model_metadata(opened.model, "description"), "");
  EXPECT_EQ(treadle_model_metadata(opened.model, "colour"), nullptr);
  EXPECT_EQ(treadle_model_version(opened.model), 7);
  EXPECT_EQ(treadle_model_ir_version(opened.model), 10);
  ASSERT_EQ(treadle_model_num_opsets(opened.model), 2U);
  EXPECT_STREQ(treadle_model_opset_domain(opened.model, 0), "");
  EXPECT_EQ(treadle_model_opset_version(opened.model, 0), 21);
  EXPECT_STREQ(treadle_model_opset_domain(opened.model, 1), "treadle");
  EXPECT_EQ(treadle_model_opset_domain(opened.model, 2), nullptr);
  ASSERT_EQ(treadle_model_num_properties(opened.model), 2U);
  EXPECT_STREQ(treadle_model_property_key(opened.model, 0), "author");
  EXPECT_STREQ(treadle_model_property_value(opened.model, 1), "cat\ndog");
  EXPECT_EQ(treadle_model_property_key(opened.model, 2), nullptr);
}

// y = ZipMap(x): a sequence with a map for each row.
TEST(CApi, MapsInASequenceAreRead) {
  ModelBuilder b;
  b.input("x", {3});
  b.def().opset_imports.push_back({"ai.onnx.ml", 3});
  treadle::onnx::ValueInfoDef y;
  y.name = "y";
  y.type.kind = treadle::onnx::TypeDef::Kind::sequence;
  treadle::onnx::TypeDef map, score;
  score.kind = treadle::onnx::TypeDef::Kind::tensor;
  score.elem_type = DType::float32;
  map.kind = treadle::onnx::TypeDef::Kind::map;
  map.key_type = DType::string;
  map.elem = std::make_unique<treadle::onnx::TypeDef>(score);
  y.type.elem = std::make_unique<treadle::onnx::TypeDef>(map);
  b.def().graph.outputs.push_back(y);
  b.node("ZipMap", {"x"}, {"y"}, "zip", "ai.onnx.ml");
  treadle::onnx::AttributeDef classes;
  classes.name = "classlabels_strings";
  classes.type = treadle::onnx::AttributeType::strings;
  classes.strings = {"ant", "bee", "cat"};
  b.last_node().attributes.push_back(classes);
  const Opened opened(std::move(b));
  treadle_value *rows = opened.run(), *row = nullptr, *keys = nullptr, *values = nullptr;
  ASSERT_EQ(treadle_sequence_length(rows), 1U);
  ASSERT_EQ(message_of(treadle_sequence_get(rows, 0, &row)), "");
  EXPECT_EQ(treadle_value_get_kind(row), TREADLE_MAP);
  EXPECT_EQ(treadle_map_size(row), 3U);
  EXPECT_EQ(treadle_map_size(rows), 0U);
  ASSERT_EQ(message_of(treadle_map_keys(row, &keys)), "");
  ASSERT_EQ(message_of(treadle_map_values(row, &values)), "");
  EXPECT_STREQ(treadle_tensor_string(keys, 1), "bee");
  EXPECT_EQ(static_cast<const float*>(treadle_tensor_data(values))[2], 3);
  treadle_value* nothing = nullptr;
  EXPECT_NE(message_of(treadle_map_keys(values, &nothing)), "");
  for (treadle_value* value : {rows, row, keys, values}) treadle_value_release(value);
}

TEST(CApi, OptionalsAndSequencesAreMadeAndRead) {
  const int64_t shape[] = {2};
  float data[] = {5, 6};
  treadle_value *tensor = nullptr, *full = nullptr, *empty = nullptr, *sequence = nullptr, *got = nullptr;
  ASSERT_EQ(message_of(treadle_tensor_borrow(TREADLE_FLOAT32, shape, 1, data, sizeof data, nullptr, nullptr, &tensor)), "");
  ASSERT_EQ(message_of(treadle_optional_create(tensor, &full)), "");
  ASSERT_EQ(message_of(treadle_optional_create(nullptr, &empty)), "");
  EXPECT_EQ(treadle_value_get_kind(full), TREADLE_OPTIONAL);
  EXPECT_EQ(treadle_optional_has_value(full), 1);
  EXPECT_EQ(treadle_optional_has_value(empty), 0);
  EXPECT_EQ(treadle_optional_has_value(tensor), 0);
  ASSERT_EQ(message_of(treadle_optional_get(full, &got)), "");
  EXPECT_EQ(treadle_tensor_data(got), data);
  treadle_value_release(got);
  EXPECT_EQ(message_of(treadle_optional_get(empty, &got)), "the optional contains nothing");
  const treadle_value* elements[] = {tensor, tensor};
  ASSERT_EQ(message_of(treadle_sequence_create(TREADLE_FLOAT32, elements, 2, &sequence)), "");
  EXPECT_EQ(treadle_sequence_length(sequence), 2U);
  treadle_value* wrong = nullptr;
  EXPECT_EQ(message_of(treadle_sequence_create(TREADLE_INT64, elements, 2, &wrong)), "values[0] is f32[2], not int64");
  EXPECT_NE(message_of(treadle_sparse_tensor_values(tensor, &wrong)), "");
  EXPECT_EQ(wrong, nullptr);
  for (treadle_value* value : {tensor, full, empty, sequence}) treadle_value_release(value);
}

TEST(CApi, ASparseOutputIsRead) {
  ModelBuilder b;
  b.input("x", {3}).output("y", {3}).constant("mask", treadle::testing::floats({0, 0, 2}));
  b.def().graph.outputs[0].type.kind = treadle::onnx::TypeDef::Kind::sparse_tensor;
  b.node("Mul", {"x", "mask"}, {"y"});
  const Opened opened(std::move(b));
  treadle_value *y = opened.run(), *shape = nullptr, *values = nullptr, *indices = nullptr, *offsets = nullptr;
  ASSERT_EQ(treadle_value_get_kind(y), TREADLE_SPARSE_TENSOR);
  ASSERT_EQ(message_of(treadle_sparse_tensor_shape(y, &shape)), "");
  ASSERT_EQ(message_of(treadle_sparse_tensor_values(y, &values)), "");
  ASSERT_EQ(message_of(treadle_sparse_tensor_indices(y, &indices)), "");
  EXPECT_EQ(static_cast<const int64_t*>(treadle_tensor_data(shape))[0], 3);
  ASSERT_EQ(treadle_tensor_num_elements(values), 1U);
  EXPECT_EQ(static_cast<const float*>(treadle_tensor_data(values))[0], 6);
  EXPECT_EQ(static_cast<const int64_t*>(treadle_tensor_data(indices))[0], 2);
  EXPECT_EQ(message_of(treadle_sparse_tensor_row_offsets(y, &offsets)), "the sparse tensor's format is COO, which has no row offsets");
  for (treadle_value* value : {y, shape, values, indices}) treadle_value_release(value);
}

struct Seen {
  std::vector<std::string> events;
  int released = 0;
  bool fails = false;
};

treadle_status* note_value(void* context, const treadle_monitor_event* event) {
  auto& seen = *static_cast<Seen*>(context);
  seen.events.push_back(std::string(event->op_type) + " " + event->node + " " + event->name + (event->is_input ? " read " : " made ") +
                        std::to_string(static_cast<int>(static_cast<const float*>(treadle_tensor_data(event->value))[2])));
  return seen.fails ? treadle_status_create(TREADLE_CANCELLED, "seen enough") : nullptr;
}
void note_release(void* context) { ++static_cast<Seen*>(context)->released; }

TEST(CApi, AMonitorSeesTheValuesThatItsPatternNames) {
  const Opened opened(treadle::testing::two_outputs());
  Seen seen;
  ASSERT_EQ(message_of(treadle_session_set_monitor(opened.session, note_value, &seen, note_release, "sum", 1)), "");
  opened.run_only();
  EXPECT_EQ(seen.events, (std::vector<std::string>{"Add adding sum made 4", "Mul multiplying sum read 4"}));
  seen.fails = true;
  std::string error;
  EXPECT_EQ(opened.run(&error), nullptr);
  EXPECT_NE(error.find("seen enough"), std::string::npos);
  ASSERT_EQ(message_of(treadle_session_set_monitor(opened.session, nullptr, nullptr, nullptr, nullptr, 0)), "");
  const size_t before = seen.events.size();
  opened.run_only();
  EXPECT_EQ(seen.events.size(), before);
}

treadle_status* note_name(void* context, const treadle_monitor_event* event) {
  static_cast<Seen*>(context)->events.emplace_back(event->name);
  return nullptr;
}

TEST(CApi, AMonitorOfATrainerSeesItsSteps) {
  treadle_model* model = nullptr;
  treadle_trainer* trainer = nullptr;
  const std::string spirals = std::string(TREADLE_SOURCE_DIR) + "/examples/train/spirals.onnx";
  ASSERT_EQ(message_of(treadle_model_load(spirals.c_str(), &model)), "");
  ASSERT_EQ(message_of(treadle_trainer_create(model, nullptr, 0, &trainer)), "");
  float points[2][2] = {{0, 1}, {1, 0}};
  int64_t classes[2] = {0, 1};
  const int64_t shape[] = {2, 2};
  treadle_value *feed = nullptr, *labels = nullptr;
  ASSERT_EQ(message_of(treadle_tensor_borrow(TREADLE_FLOAT32, shape, 2, points, sizeof points, nullptr, nullptr, &feed)), "");
  ASSERT_EQ(message_of(treadle_tensor_borrow(TREADLE_INT64, shape, 1, classes, sizeof classes, nullptr, nullptr, &labels)), "");
  Seen seen;
  ASSERT_EQ(message_of(treadle_trainer_set_monitor(trainer, note_name, &seen, note_release, nullptr, 0)), "");
  const char* name = "point";
  ASSERT_EQ(message_of(treadle_trainer_step(trainer, nullptr, &name, &feed, 1, labels, nullptr)), "");
  EXPECT_GT(seen.events.size(), 3U);
  treadle_value_release(feed);
  treadle_value_release(labels);
  treadle_trainer_release(trainer);
  EXPECT_EQ(seen.released, 1);
  treadle_model_release(model);
}

treadle_status* note_run(void* context, const treadle_hooked_run* run) {
  auto& seen = *static_cast<Seen*>(context);
  seen.events.push_back(run->error);
  return seen.fails ? treadle_status_create(TREADLE_CANCELLED, "not now") : nullptr;
}

TEST(CApi, HooksSeeRunsAndMayRefuseThem) {
  const Opened opened(treadle::testing::two_outputs());
  Seen before, after;
  uint64_t first = 0, second = 0;
  EXPECT_EQ(message_of(treadle_register_hook(2, 0, note_run, &before, nullptr, &first)),
            "treadle_register_hook: point is 2; 0 or 1 is expected");
  ASSERT_EQ(message_of(treadle_register_hook(TREADLE_PRE_RUN, 0, note_run, &before, note_release, &first)), "");
  ASSERT_EQ(message_of(treadle_register_hook(TREADLE_POST_RUN, 0, note_run, &after, note_release, &second)), "");
  opened.run_only();
  EXPECT_EQ(before.events.size(), 1U);
  EXPECT_EQ(after.events, (std::vector<std::string>{""}));
  before.fails = true;
  std::string error;
  EXPECT_EQ(opened.run(&error), nullptr);
  EXPECT_NE(error.find("not now"), std::string::npos);
  EXPECT_EQ(treadle_unregister_hook(first), 1);
  EXPECT_EQ(treadle_unregister_hook(first), 0);
  EXPECT_EQ(treadle_unregister_hook(second), 1);
  EXPECT_EQ(before.released, 1);
  EXPECT_EQ(after.released, 1);
  opened.run_only();
  EXPECT_EQ(before.events.size(), 2U);
}

void note_message(void* context, int32_t severity, const char* message) {
  static_cast<Seen*>(context)->events.push_back(std::to_string(severity) + " " + message);
}

TEST(CApi, TheLogGoesToTheCallback) {
  Seen seen;
  ASSERT_EQ(message_of(treadle_set_log_callback(note_message, &seen, note_release, TREADLE_LOG_WARNING)), "");
  TREADLE_LOG(warning, "a {} of {}", "word", "warning");
  TREADLE_LOG(info, "not told");
  ASSERT_EQ(message_of(treadle_set_log_callback(nullptr, nullptr, nullptr, TREADLE_LOG_WARNING)), "");
  EXPECT_EQ(seen.events, (std::vector<std::string>{"2 a word of warning"}));
  EXPECT_EQ(seen.released, 1);
  EXPECT_NE(message_of(treadle_set_log_callback(note_message, &seen, nullptr, 9)).find("lowest is 9"), std::string::npos);
}

}  // namespace
