#include "tests/autodiff/gradient_check.h"

namespace treadle::testing {
namespace {

Tensor ints(std::vector<int64_t> values) { return Tensor::vector<int64_t>(values); }

TEST(MovementGradients, ReshapesGiveTheInputItsShapeBack) {
  check_gradients({.op_type = "Reshape", .inputs = {doubles({2, 6}, 1), ints({3, -1})}});
  check_gradients({.op_type = "Reshape", .inputs = {doubles({2, 6}, 1), ints({-1, 3})}, .symbolic_batch = true});
  check_gradients({.op_type = "Flatten", .inputs = {doubles({2, 3, 2}, 1)}});
  check_gradients({.op_type = "Squeeze", .inputs = {doubles({2, 1, 3}, 1), ints({1})}});
  check_gradients({.op_type = "Unsqueeze", .inputs = {doubles({2, 3}, 1), ints({0, 3})}});
}

TEST(MovementGradients, TransposesAreInverted) {
  check_gradients({.op_type = "Transpose", .inputs = {doubles({2, 3, 4}, 1)}});
  check_gradients({.op_type = "Transpose", .inputs = {doubles({2, 3, 4}, 1)}, .attributes = {{"perm", std::vector<int64_t>{1, 2, 0}}}});
}

TEST(MovementGradients, ConcatAndSplitUndoEachOther) {
  check_gradients(
      {.op_type = "Concat", .inputs = {doubles({2, 3}, 1), doubles({2, 1}, 2), doubles({2, 2}, 3)}, .attributes = {{"axis", int64_t{-1}}}});
  check_gradients(
      {.op_type = "Split", .inputs = {doubles({2, 6}, 1), ints({1, 3, 2})}, .attributes = {{"axis", int64_t{1}}}, .num_outputs = 3});
}

TEST(MovementGradients, SlicesLieInZeros) {
  check_gradients({.op_type = "Slice", .inputs = {doubles({4, 5}, 1), ints({1}), ints({4}), ints({1})}});
  check_gradients({.op_type = "Slice", .inputs = {doubles({4, 5}, 1), ints({-1, 0}), ints({-10, 5}), ints({0, 1}), ints({-2, 2})}});
  check_gradients({.op_type = "Slice", .inputs = {doubles({3, 4, 5}, 1), ints({1, 1}), ints({3, 3})}});
}

TEST(MovementGradients, GatherSumsRowsThatWereTakenTwice) {
  check_gradients({.op_type = "Gather", .inputs = {doubles({4, 3}, 1), indices({2, 2}, {0, 2, -1, 2})}});
  check_gradients({.op_type = "Gather", .inputs = {doubles({2, 4, 3}, 1), indices({3}, {1, 1, 0})}, .attributes = {{"axis", int64_t{1}}}});
  check_gradients({.op_type = "Gather", .inputs = {doubles({2, 4}, 1), indices({}, {3})}, .attributes = {{"axis", int64_t{1}}}});
}

TEST(MovementGradients, ExpandSumsWhatItStretched) {
  check_gradients({.op_type = "Expand", .inputs = {doubles({3, 1}, 1), ints({2, 3, 4})}});
}

TEST(MovementGradients, SumsAndMeansSpreadOverTheirAxes) {
  for (const char* op : {"ReduceSum", "ReduceMean"})
    for (int64_t keepdims : {0, 1}) {
      const Attributes attributes{{"keepdims", keepdims}};
      check_gradients({.op_type = op, .inputs = {doubles({2, 3, 4}, 1), ints({1})}, .attributes = attributes});
      check_gradients({.op_type = op, .inputs = {doubles({2, 3, 4}, 1), ints({0, -1})}, .attributes = attributes});
      check_gradients({.op_type = op, .inputs = {doubles({2, 3}, 1)}, .attributes = attributes});
      check_gradients({.op_type = op, .inputs = {doubles({2, 3, 4}, 1), ints({1})}, .attributes = attributes, .symbolic_batch = true});
      check_gradients({.op_type = op, .inputs = {doubles({2, 3, 4}, 1), ints({0})}, .attributes = attributes, .symbolic_batch = true});
    }
}

TEST(MovementGradients, OtherReductionsFollowFiniteDifferences) {
  for (const char* op : {"ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp", "ReduceLogSum"})
    for (int64_t keepdims : {0, 1}) {
      const Attributes attributes{{"keepdims", keepdims}};
      const Tensor x = doubles({2, 3, 4}, 1, std::string_view(op) == "ReduceLogSum" ? 0.5 : -1, 2);
      check_gradients({.op_type = op, .inputs = {x, ints({1})}, .attributes = attributes});
      check_gradients({.op_type = op, .inputs = {x, ints({0, -1})}, .attributes = attributes, .symbolic_batch = true});
      check_gradients({.op_type = op, .inputs = {x}, .attributes = attributes});
    }
}

TEST(MovementGradients, PadsAreCutOffAgainAndTilesSummed) {
  check_gradients({.op_type = "Pad", .inputs = {doubles({3, 4}, 1), ints({1, -1, 0, 2})}});
  check_gradients({.op_type = "Pad", .inputs = {doubles({2, 3, 4}, 1), ints({1, 2}), Tensor(), ints({-1})}});
  check_gradients({.op_type = "Tile", .inputs = {doubles({2, 3}, 1), ints({3, 2})}});
  check_gradients({.op_type = "Tile", .inputs = {doubles({2, 3}, 1), ints({1, 2})}, .symbolic_batch = true});
  check_gradients({.op_type = "Trilu", .inputs = {doubles({3, 4}, 1)}});
  check_gradients({.op_type = "Trilu", .inputs = {doubles({3, 4}, 1), Tensor::scalar<int64_t>(-1)}, .attributes = {{"upper", int64_t{0}}}});
}

TEST(MovementGradients, ResizesFollowFiniteDifferencesInEveryMode) {
  const Tensor twice = Tensor::vector<float>(std::vector<float>{1, 1, 2, 1.5F}), x = doubles({2, 2, 4, 6}, 1);
  for (const char* mode : {"nearest", "linear", "cubic"})
    for (const char* coordinates : {"half_pixel", "align_corners", "asymmetric"}) {
      const Attributes attributes{{"mode", std::string(mode)}, {"coordinate_transformation_mode", std::string(coordinates)}};
      check_gradients({.op_type = "Resize", .inputs = {x, Tensor(), twice}, .attributes = attributes, .symbolic_batch = true});
      check_gradients({.op_type = "Resize", .inputs = {x, Tensor(), Tensor(), ints({2, 3, 3, 9})}, .attributes = attributes});
    }
  check_gradients({.op_type = "Resize",
                   .inputs = {x, Tensor(), Tensor(), ints({2, 3})},
                   .attributes = {{"mode", std::string("linear")}, {"axes", std::vector<int64_t>{-2, -1}}, {"antialias", int64_t{1}}}});
}

TEST(MovementGradients, ElementsThatWereGatheredTwiceAreSummedAndThoseThatWereReplacedGetNone) {
  check_gradients({.op_type = "GatherElements",
                   .inputs = {doubles({3, 4}, 1), indices({2, 4}, {0, 2, 0, 1, 0, -1, 1, 1})},
                   .attributes = {{"axis", int64_t{0}}}});
  check_gradients({.op_type = "GatherND", .inputs = {doubles({3, 4}, 1), indices({3, 1}, {2, 0, 2})}});
  check_gradients({.op_type = "GatherND", .inputs = {doubles({3, 4}, 1), indices({2, 2}, {2, 0, 1, 3})}});
  for (const char* reduction : {"none", "add"}) {
    const Attributes attributes{{"reduction", std::string(reduction)}};
    check_gradients(
        {.op_type = "ScatterND", .inputs = {doubles({3, 4}, 1), indices({2, 1}, {2, 0}), doubles({2, 4}, 2)}, .attributes = attributes});
    check_gradients({.op_type = "ScatterElements",
                     .inputs = {doubles({3, 4}, 1), indices({1, 3}, {2, 0, 1}), doubles({1, 3}, 2)},
                     .attributes = attributes});
  }
}

TEST(MovementGradients, PadsThatRepeatElementsSumThem) {
  for (const char* mode : {"reflect", "edge", "wrap"})
    check_gradients({.op_type = "Pad", .inputs = {doubles({3, 4}, 1), ints({1, 2, 2, -1})}, .attributes = {{"mode", std::string(mode)}}});
  check_gradients({.op_type = "Pad", .inputs = {doubles({3, 4}, 1), ints({1, -1, 0, 2}), Tensor::scalar(0.5)}});
  check_gradients({.op_type = "CenterCropPad", .inputs = {doubles({3, 6}, 1), ints({6, 3})}});
}

TEST(MovementGradients, RearrangementsAreInverted) {
  const Tensor x = doubles({2, 8, 2, 4}, 1);
  for (const char* mode : {"DCR", "CRD"})
    check_gradients({.op_type = "DepthToSpace", .inputs = {x}, .attributes = {{"blocksize", int64_t{2}}, {"mode", std::string(mode)}}});
  check_gradients({.op_type = "SpaceToDepth", .inputs = {x}, .attributes = {{"blocksize", int64_t{2}}}});
  check_gradients({.op_type = "ReverseSequence", .inputs = {doubles({4, 2}, 1), ints({3, 1})}});
  check_gradients({.op_type = "TopK", .inputs = {doubles({3, 5}, 1), ints({2})}, .attributes = {{"axis", int64_t{1}}}, .num_outputs = 2});
  Tensor condition(DType::boolean, {4});
  for (int i : {0, 1, 2, 3}) condition.data<bool>()[i] = i != 1;
  check_gradients({.op_type = "Compress", .inputs = {doubles({4, 2}, 1), condition}, .attributes = {{"axis", int64_t{0}}}});
  check_gradients({.op_type = "Compress", .inputs = {doubles({2, 3}, 1), condition}});
  check_gradients(
      {.op_type = "GatherND", .inputs = {doubles({2, 3, 2}, 1), indices({2, 1}, {2, 0})}, .attributes = {{"batch_dims", int64_t{1}}}});
}

TEST(MovementGradients, ScattersThatReduceFollowFiniteDifferences) {
  Tensor updates = doubles({3, 3}, 2, 0.3, 1);
  updates.data<double>()[1] = 0;
  for (const char* reduction : {"mul", "max", "min"})
    check_gradients({.op_type = "ScatterElements",
                     .inputs = {doubles({3, 4}, 1), indices({3, 3}, {2, 0, 1, 2, 0, 0, 1, 0, 0}), updates},
                     .attributes = {{"reduction", std::string(reduction)}}});
}

TEST(MovementGradients, EinsumsWithDiagonalsAndDeterminants) {
  check_gradients({.op_type = "Einsum", .inputs = {doubles({3, 3}, 1)}, .attributes = {{"equation", std::string("ii->i")}}});
  check_gradients(
      {.op_type = "Einsum", .inputs = {doubles({3, 3, 2}, 1), doubles({2, 4}, 2)}, .attributes = {{"equation", std::string("iij,jk->k")}}});
  check_gradients({.op_type = "Det", .inputs = {doubles({2, 3, 3}, 1)}});
}

TEST(MovementGradients, MatMulFollowsFiniteDifferencesForVectorsMatricesAndBatches) {
  check_gradients({.op_type = "MatMul", .inputs = {doubles({2, 3}, 1), doubles({3, 4}, 2)}});
  check_gradients({.op_type = "MatMul", .inputs = {doubles({2, 3}, 1), doubles({3, 4}, 2)}, .symbolic_batch = true});
  check_gradients({.op_type = "MatMul", .inputs = {doubles({3}, 1), doubles({3, 4}, 2)}});
  check_gradients({.op_type = "MatMul", .inputs = {doubles({2, 3}, 1), doubles({3}, 2)}});
  check_gradients({.op_type = "MatMul", .inputs = {doubles({3}, 1), doubles({3}, 2)}});
  check_gradients({.op_type = "MatMul", .inputs = {doubles({2, 2, 3}, 1), doubles({3, 4}, 2)}});
  check_gradients({.op_type = "MatMul", .inputs = {doubles({2, 2, 3}, 1), doubles({3, 4}, 2)}, .symbolic_batch = true});
  check_gradients({.op_type = "MatMul", .inputs = {doubles({2, 1, 2, 3}, 1), doubles({3, 3, 2}, 2)}});
  check_gradients({.op_type = "MatMul", .inputs = {doubles({2, 3}, 1), doubles({2, 3, 2}, 2)}});
  check_gradients({.op_type = "MatMul", .inputs = {doubles({2, 2, 3}, 1), doubles({3}, 2)}});
}

TEST(MovementGradients, GemmFollowsFiniteDifferencesForEveryTransposition) {
  for (int64_t trans_a : {0, 1})
    for (int64_t trans_b : {0, 1})
      for (const Shape& bias : {Shape{4}, Shape{2, 4}, Shape{2, 1}, Shape{}})
        check_gradients(
            {.op_type = "Gemm",
             .inputs = {doubles(trans_a ? Shape{3, 2} : Shape{2, 3}, 1), doubles(trans_b ? Shape{4, 3} : Shape{3, 4}, 2), doubles(bias, 3)},
             .attributes = {{"transA", trans_a}, {"transB", trans_b}, {"alpha", 0.5F}, {"beta", 2.0F}}});
  check_gradients({.op_type = "Gemm", .inputs = {doubles({2, 3}, 1), doubles({3, 4}, 2)}});
}

}  // namespace
}  // namespace treadle::testing
