// Tests every operator that gets indices, lengths or sizes from data with values at, around and far beyond its bounds. All arrays end
// directly before an inaccessible page.
#include "tests/ops/data_bounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "core/values/dispatch.h"
#include "core/values/float_types.h"
#include "exec/run/frame.h"
#include "graph/evaluate.h"
#include "graph/op_def.h"
#include "onnx/import.h"
#include "passes/pipeline.h"
#include "tests/exec/host_program.h"
#include "tests/fuzz/fenced.h"
#include "tests/ops/data_bounds_exempt.h"
#include "treadle/error.h"

namespace treadle::testing {
namespace {

using fuzz::fenced;

constexpr int64_t kMin64 = std::numeric_limits<int64_t>::min(), kMax64 = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin32 = std::numeric_limits<int32_t>::min(), kMax32 = std::numeric_limits<int32_t>::max();

/// A way in which a node gets its operands: as constants or feeds, with or without known ranks, as int32, in an optimised graph.
struct Way {
  bool constant, rank_known, others_rank_known, narrow, optimized;
};
std::string to_string(const Way& way) {
  return fmt::format("{}{}, others {}{}{}",
                     way.constant     ? "constant"
                     : way.rank_known ? "feed"
                                      : "feed of unknown rank",
                     way.narrow ? " of int32" : "", way.others_rank_known ? "of known shape" : "of unknown rank",
                     way.optimized ? ", optimised" : "", "");
}

Datum fenced_datum(const Datum& datum) {
  if (datum.is_tensor()) return fenced(datum.tensor());
  if (datum.kind() != Datum::Kind::sequence) return datum;
  Sequence copy{datum.sequence().element_dtype, {}};
  for (const Datum& element : datum.sequence().elements) copy.elements.push_back(fenced_datum(element));
  return copy;
}

Tensor as_int32(const Tensor& wide) {
  Tensor narrow(DType::int32, wide.shape());
  for (int64_t i = 0; i < wide.num_elements(); ++i) narrow.data<int32_t>()[i] = static_cast<int32_t>(wide.data<int64_t>()[i]);
  return narrow;
}
bool fits_int32(const Tensor& wide) {
  for (const int64_t x : wide.span<int64_t>())
    if (x < kMin32 || x > kMax32) return false;
  return true;
}
bool is_int64(const Datum& datum) { return datum.is_tensor() && datum.tensor().dtype() == DType::int64; }

const Port& port_of(const OpDef& op, size_t input) { return op.inputs[std::min(input, op.inputs.size() - 1)]; }

/// Converts the operand under test to int32, and all operands that must have the same type. @return false if that is not possible
bool narrow_operands(const OpDef& op, size_t operand, std::vector<Datum>& inputs) {
  const Port& own = port_of(op, operand);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Port& port = port_of(op, i);
    if (i != operand && (own.type_name.empty() || port.type_name != own.type_name)) continue;
    if (!inputs[i].defined()) continue;
    if (!port.types.has(DType::int32) || !is_int64(inputs[i]) || !fits_int32(inputs[i].tensor())) return false;
    inputs[i] = as_int32(inputs[i].tensor());
  }
  return true;
}

struct Made {
  std::shared_ptr<Graph> graph;
  std::vector<Datum> feeds;
};

Made graph_of(const BoundsRow& row, const BoundsCase& c, const Way& way) {
  Made made{std::make_shared<Graph>(std::make_shared<SymbolTable>()), {}};
  Graph& graph = *made.graph;
  std::vector<ValueId> inputs;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    if (!c.inputs[i].defined()) {
      inputs.push_back(kNoValue);
      continue;
    }
    const Datum value = fenced_datum(c.inputs[i]);
    const std::string name = "x" + std::to_string(i);
    const bool asked = std::find(c.constant_operands.begin(), c.constant_operands.end(), i) != c.constant_operands.end();
    if ((asked || (i == row.operand && way.constant)) && value.is_tensor()) {
      inputs.push_back(graph.add_constant(name, value));
      continue;
    }
    Type type = Type::of(value);
    if (type.is_tensor() && !(i == row.operand ? way.rank_known : way.others_rank_known)) type = Type::tensor(type.dtype);
    inputs.push_back(graph.add_input(name, std::move(type)));
    made.feeds.push_back(value);
  }
  const NodeId id = graph.add_node({.op_type = row.op,
                                    .inputs = std::move(inputs),
                                    .attributes = c.attributes,
                                    .domain = row.domain == "ai.onnx" ? "" : row.domain,
                                    .num_outputs = c.num_outputs});
  if (row.domain == "ai.onnx") graph.node(id).version = c.opset;
  for (const ValueId output : graph.node(id).outputs) {
    graph.outputs.push_back(output);
    graph.output_names.push_back(graph.value(output).name);
  }
  onnx::upgrade(graph);
  way.optimized ? passes::optimize(graph) : passes::canonicalize(graph);
  return made;
}

/// Runs the nodes. Every value is in separate memory that ends directly before an inaccessible page. @return all values
std::vector<Datum> run_fenced(const Made& made) {
  const Graph& graph = *made.graph;
  std::map<ValueId, Datum> values;
  for (size_t i = 0; i < graph.inputs.size(); ++i) values[graph.inputs[i]] = made.feeds[i];
  Evaluator evaluator;
  evaluator.max_output_bytes = size_t{1} << 30;
  evaluator.allocate = [](DType dtype, const Shape& shape) { return fenced(dtype, shape); };
  auto value_of = [&](ValueId id) -> Datum {
    return id == kNoValue ? Datum() : graph.value(id).is_constant() ? graph.value(id).constant : values[id];
  };
  for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id)) {
    const Node& node = graph.node(id);
    std::vector<Datum> inputs;
    for (const ValueId input : node.inputs) inputs.push_back(value_of(input));
    std::vector<DType> dtypes;
    for (const ValueId output : node.outputs) dtypes.push_back(output == kNoValue ? DType::undefined : graph.type(output).dtype);
    const KernelDef& kernel = select_kernel(graph, node);
    const std::unique_ptr<PackedState> packed = kernel.create ? kernel.create(CreateContext(graph, node)) : nullptr;
    const std::vector<Datum> outputs = evaluate_node(node, kernel, packed.get(), inputs, dtypes, evaluator);
    for (size_t i = 0; i < outputs.size(); ++i)
      if (node.outputs[i] != kNoValue) values[node.outputs[i]] = outputs[i];
  }
  std::vector<Datum> outputs;
  for (const ValueId id : graph.outputs) outputs.push_back(value_of(id));
  return outputs;
}

std::vector<Datum> run_whole(const Made& made) {
  std::vector<Datum> outputs(made.graph->outputs.size());
  testing::HostProgram(made.graph).run(made.feeds, outputs, {});
  return outputs;
}

void expect_refused(const Error& error, const BoundsRow& row, int64_t value) {
  // True for a size that is impossible, or so large that sums and products of it overflow.
  const bool large = row.beyond == Beyond::too_large && (value > row.highest || value < kMin32);
  if (large && error.code() == ErrorCode::resource_exhausted) return;
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
  if (!row.is_named) return;
  const int64_t named = static_cast<int64_t>(static_cast<uint64_t>(value) - static_cast<uint64_t>(row.named_less));
  EXPECT_NE(std::string(error.what()).find(std::to_string(named)), std::string::npos) << "does not name it: " << error.what();
}

void expect_numbers(const std::vector<double>& have, const std::vector<double>& want) {
  ASSERT_EQ(have.size(), want.size());
  for (size_t i = 0; i < have.size(); ++i)
    EXPECT_TRUE(have[i] == want[i] || std::abs(have[i] - want[i]) <= 1e-4 * (1 + std::abs(want[i])) ||
                (have[i] != have[i] && want[i] != want[i]))
        << "element " << i << " is " << have[i] << ", expected " << want[i];
}

void check_value(const BoundsRow& row, int64_t value, const Way& way) {
  SCOPED_TRACE(fmt::format("{} = {}, {}", row.name(), value, to_string(way)));
  BoundsCase c = row.make(value);
  const OpDef* op = find_op(row.domain == "ai.onnx" ? "" : row.domain, row.op);
  ASSERT_NE(op, nullptr);
  const Datum& operand = c.inputs[row.operand];
  if (operand.is_tensor() && operand.tensor().dtype() == DType::int32 && (value < kMin32 || value > kMax32)) return;
  if (way.narrow && !narrow_operands(*op, row.operand, c.inputs)) return;
  if (c.whole_rank_known && !(way.rank_known && way.others_rank_known)) return;
  const bool valid = row.beyond == Beyond::defined || (value >= row.lowest && value <= row.highest);
  for (auto* run : {run_whole, run_fenced}) {
    try {
      std::vector<Datum> outputs = run(graph_of(row, c, way));
      outputs.resize(std::min(outputs.size(), static_cast<size_t>(c.num_compared)));
      const std::vector<double> have = numbers_of(outputs);
      if (valid)
        expect_numbers(have, row.expected(value));
      else
        ADD_FAILURE() << "taken, although it is outside [" << row.lowest << ", " << row.highest << "]";
    } catch (const Error& error) {
      if (valid)
        ADD_FAILURE() << error.what();
      else
        expect_refused(error, row, value);
    } catch (const std::exception& error) {
      ADD_FAILURE() << "no error of the library: " << error.what();
    }
  }
}

std::set<int64_t> values_of(const BoundsRow& row) {
  std::set<int64_t> values(row.between.begin(), row.between.end());
  for (const int64_t value : {row.lowest, row.highest}) {
    values.insert(value);
    if (value > kMin64) values.insert(value - 1);
    if (value < kMax64) values.insert(value + 1);
  }
  // These values are so far away that sums and products with them overflow.
  for (const int64_t far : {kMin64, kMin64 + 1, kMin64 + 4, -(kMax64 / 2), -(int64_t{1} << 62), kMin32, kMin32 - 1, -kMax32, kMax32,
                            kMax32 + 1, int64_t{1} << 32, (int64_t{1} << 32) + 1, int64_t{1} << 61, int64_t{1} << 62, kMax64 - 1, kMax64}) {
    values.insert(far);
  }
  // Leaves out sizes for which there might be enough memory.
  if (row.beyond == Beyond::too_large)
    std::erase_if(values,
                  [&](int64_t v) { return (v > row.highest && v < int64_t{1} << 50) || (v < row.lowest - 1 && v > -(int64_t{1} << 50)); });
  return values;
}

class DataBounds : public ::testing::TestWithParam<BoundsRow> {};

std::string test_name(const ::testing::TestParamInfo<BoundsRow>& info) {
  std::string name = info.param.name();
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name + "_" + std::to_string(info.index);
}

TEST_P(DataBounds, AreKept) { check_bounds(GetParam()); }

Datum of_other_count(const Datum& operand, const Shape& shape) {
  Tensor other(operand.tensor().dtype(), shape);
  std::memset(other.raw(), 0, other.size_bytes());
  return other;
}

// Gives operands more or fewer elements than the operator expects, or none. The operator may refuse them, but must not read elements that
// do not exist.
TEST_P(DataBounds, AreOfAsManyElementsAsThereAre) {
  const BoundsRow& row = GetParam();
  if (!row.make(row.lowest).inputs[row.operand].is_tensor()) return;
  for (const Shape& shape : {Shape{0}, Shape{}, Shape{1}, Shape{2}, Shape{5}, Shape{0, 2}, Shape{1, 1}, Shape{2, 2}, Shape{1, 1, 1}}) {
    for (const Way& way :
         {Way{true, true, true, false, true}, Way{false, true, true, false, false}, Way{false, false, false, false, false}}) {
      BoundsCase c = row.make(row.lowest == kMin64 ? row.highest : row.lowest);
      if (c.whole_rank_known && !(way.rank_known && way.others_rank_known)) continue;
      c.inputs[row.operand] = of_other_count(c.inputs[row.operand], shape);
      SCOPED_TRACE(fmt::format("{} of the shape {}, {}", row.name(), to_string(shape), to_string(way)));
      for (auto* run : {run_whole, run_fenced}) {
        try {
          run(graph_of(row, c, way));
        } catch (const Error& error) {
          EXPECT_NE(error.code(), ErrorCode::internal) << error.what();
        }
      }
    }
  }
}

std::vector<BoundsRow> all_rows() {
  std::vector<BoundsRow> all;
  for (auto* rows : {indexing_rows, movement_rows, shape_rows, neural_rows, sequence_rows, microsoft_rows, attention_rows, internal_rows})
    for (BoundsRow& row : rows()) all.push_back(std::move(row));
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, DataBounds, ::testing::ValuesIn(all_rows()), test_name);

// Each integer operand of a new operator needs a row in the table or an exemption with a reason.
TEST(DataBoundsTable, HasEveryOperatorThatTakesIntegers) {
  std::set<std::string> covered;
  for (const BoundsRow& row : all_rows()) covered.insert(row.name());
  std::set<std::string> exempt;
  for (const ExemptOperand& e : kExemptOperands) exempt.insert(std::string(e.name));
  for (const OpDef& op : all_ops()) {
    const std::string name = fmt::format("{}:{}", op.domain.empty() ? "ai.onnx" : op.domain, op.name);
    if (exempt.erase(name) > 0) continue;
    for (const Port& port : op.inputs) {
      if (!port.types.has(DType::int32) && !port.types.has(DType::int64)) continue;
      if (port.types.has(DType::float32)) continue;  // the operand is one for arithmetic, since floats are allowed as well
      const std::string operand = fmt::format("{}.{}", name, port.name);
      if (exempt.erase(operand) > 0) continue;
      EXPECT_TRUE(covered.contains(operand)) << operand << " has no row in the table, and no reason why it needs none";
    }
  }
  for (const std::string& name : exempt)
    ADD_FAILURE() << name << " is listed as an exception and is no operator, or no operand of integers";
}

}  // namespace

std::string BoundsRow::name() const {
  const OpDef* definition = find_op(domain == "ai.onnx" ? "" : domain, op);
  return fmt::format("{}:{}.{}", domain, op, definition ? port_of(*definition, operand).name : "?");
}

void check_bounds(const BoundsRow& row) {
  for (const int64_t value : values_of(row)) {
    for (const bool narrow : {false, true}) {
      for (const bool others : {true, false}) {
        for (const bool optimized : {false, true}) check_value(row, value, {true, true, others, narrow, optimized});
        check_value(row, value, {false, true, others, narrow, false});
      }
      check_value(row, value, {false, false, false, narrow, false});
      check_value(row, value, {false, false, true, narrow, true});
    }
    if (::testing::Test::HasFailure()) return;  // one value that fails is enough
  }
}

std::vector<double> numbers_of(const std::vector<Datum>& outputs) {
  std::vector<double> numbers;
  for (const Datum& output : outputs) {
    if (output.kind() == Datum::Kind::sequence) {
      for (const double x : numbers_of(output.sequence().elements)) numbers.push_back(x);
      continue;
    }
    if (!output.is_tensor() || output.tensor().dtype() == DType::string) continue;
    const Tensor tensor = output.tensor().contiguous();
    visit_dtype<concat_t<NumericTypes, TypeList<bool>>>(tensor.dtype(), [&]<typename T>() {
      for (const T x : tensor.span<T>()) numbers.push_back(static_cast<double>(static_cast<compute_type_t<T>>(x)));
    });
  }
  return numbers;
}

}  // namespace treadle::testing
