#include "graph/unused_kernels.h"

#include <gtest/gtest.h>

#include "graph/op_def.h"
#include "treadle/error.h"

namespace treadle {
namespace {

struct Takes {
  static Takes bind(BindContext&) { return {}; }
  void run(RunContext&) const {}
};
struct Declines : Takes {
  static std::string declines(const CreateContext&) { return "the moon is full"; }
  static Declines bind(BindContext&) { return {}; }
};

class UnusedKernels : public testing::Test {
 protected:
  explicit UnusedKernels(DType dtype = DType::float32) : graph_(std::make_shared<SymbolTable>()) {
    op_.name = "Op";
    op_.kernels = {kernel<Takes>("plain", DType::float64), kernel<Declines>("lunar"), kernel<Declines>("lunar half", DType::float16),
                   kernel<Takes>("plain", DType::int32),   kernel<Takes>("good"),     kernel<Takes>("slow")};
    const ValueId x = graph_.add_input("x", Type::tensor(dtype, SymbolicShape{Dim(2)}));
    node_ = graph_.add_node({.op_type = "Relu", .inputs = {x}, .name = "node", .num_outputs = 1});
    graph_.node(node_).op = &op_;  // the node uses this definition in place of Relu's
  }
  std::vector<std::string> lines(std::string_view chosen) const {
    std::vector<std::string> found;
    for (const UnusedKernel& unused : unused_kernels(graph_, graph_.node(node_), chosen)) found.push_back(unused.name + ": " + unused.why);
    return found;
  }

  OpDef op_;
  Graph graph_;
  NodeId node_ = kNoNode;
};

TEST_F(UnusedKernels, EachSaysWhy) {
  ASSERT_EQ(select_kernel(graph_, graph_.node(node_)).name, "good");
  EXPECT_EQ(lines("good"), (std::vector<std::string>{"plain: for float64, int32, not float32", "lunar: the moon is full",
                                                     "lunar half: for float16, not float32", "slow: good goes before it"}));
}

TEST_F(UnusedKernels, ADevicesKernelGoesBeforeThoseOfTheHost) {
  EXPECT_EQ(
      lines("of the device"),
      (std::vector<std::string>{"plain: for float64, int32, not float32", "lunar: the moon is full", "lunar half: for float16, not float32",
                                "good: the device's kernel of the device goes before it", "slow: of the device goes before it"}));
}

class UnusedKernelsOfDoubles : public UnusedKernels {
 protected:
  UnusedKernelsOfDoubles() : UnusedKernels(DType::float64) {}
};

TEST_F(UnusedKernelsOfDoubles, TheFirstIsTaken) {
  EXPECT_EQ(lines("plain"),
            (std::vector<std::string>{"lunar: the moon is full", "lunar half: for float16, not float64", "plain: for int32, not float64",
                                      "good: plain goes before it", "slow: plain goes before it"}));
}

}  // namespace
}  // namespace treadle
