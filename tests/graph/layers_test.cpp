#include "graph/layers.h"

#include <gtest/gtest.h>

namespace treadle {
namespace {

using Layers = std::vector<std::string>;

Node node_of(std::string name, std::string scopes = "") {
  Node node;
  node.sources = {std::move(name)};
  if (!scopes.empty()) node.metadata = {{"other", "x"}, {"pkg.torch.onnx.name_scopes", std::move(scopes)}};
  return node;
}

TEST(Layers, AreTheModulesThatAnExporterNoted) {
  EXPECT_EQ(layers_of(node_of("node_conv2d_1", "['', 'layer1', 'layer1.0', 'layer1.0.conv1', 'conv2d_1']")),
            (Layers{"layer1", "layer1.0", "layer1.0.conv1"}));
  EXPECT_EQ(layers_of(node_of("a/b/c", "['', 'mean']")), Layers{}) << "it is of the model itself, whatever its name";
  EXPECT_EQ(layers_of(node_of("x", R"(['', "it's", 'a\'b\\', 'y'])")), (Layers{"it's", R"(a'b\)"}));
}

TEST(Layers, AreTheBeginningsOfAPathOtherwise) {
  EXPECT_EQ(layers_of(node_of("/layer1/layer1.0/conv1/Conv")), (Layers{"layer1", "layer1/layer1.0", "layer1/layer1.0/conv1"}));
  EXPECT_EQ(layers_of(node_of("layer1.0.conv1")), (Layers{"layer1", "layer1.0"}));
  EXPECT_EQ(layers_of(node_of("a//b/c")), (Layers{"a", "a//b"}));
  EXPECT_EQ(layers_of(node_of("Conv_3")), Layers{});
  EXPECT_EQ(layers_of(node_of("/Conv")), Layers{});
  EXPECT_EQ(layers_of(node_of("")), Layers{});
  EXPECT_EQ(layers_of(Node{}), Layers{});
}

TEST(Layers, ComeFromNamesWhereWhatIsNotedIsNoList) {
  for (const char* damaged : {"", "[", "[']", "['a'", "['a' 'b']", "[a]", "['a', 'b", "['a\\", "{'a': 'b'}", "[]"})
    EXPECT_EQ(layers_of(node_of("block/conv", damaged)), Layers{"block"}) << damaged;
}

TEST(Layers, AreCopiedToGradients) {
  const Node from = node_of("a", "['', 'fc', 'linear']");
  Node to = node_of("b");
  copy_layers(from, to);
  copy_layers(node_of("c", "['', 'other', 'linear']"), to);
  EXPECT_EQ(layers_of(to), Layers{"fc"});
  EXPECT_EQ(to.metadata.size(), 1U) << "other metadata may ask for something";
}

}  // namespace
}  // namespace treadle
