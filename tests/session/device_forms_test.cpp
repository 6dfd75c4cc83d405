// Tests devices with kernels of their own, which say which fused operators they compute.
#include <gtest/gtest.h>

#include "core/devices/device_registry.h"
#include "device/sim/sim_device.h"
#include "graph/kernel_table.h"
#include "graph/op_def.h"
#include "tests/session/model_bytes.h"
#include "tests/session/models.h"
#include "treadle/error.h"
#include "treadle/session.h"

namespace treadle::testing {
namespace {

/// A simulated device that uses the host's kernels for some operators as if they were kernels of its own.
class SomeKernels final : public KernelTable {
 public:
  DeviceKernel find(const Graph& graph, const Node& node) const override {
    if (!node.op->pointwise && !node.is("FusedElementwise", "treadle")) return {};
    const KernelDef& host = select_kernel(graph, node);
    return {&host, host.create ? std::shared_ptr<PackedState>(host.create(CreateContext(graph, node))) : nullptr};
  }
};

void register_device(const std::string& name, std::vector<std::string> fused) {
  register_device_type({.name = name,
                        .make = [](const DeviceRequest&) { return SimDevice::create({}); },
                        .make_host = {},
                        .kernels = std::make_shared<SomeKernels>(),
                        .fused_operators = std::move(fused)});
}

/// Makes the model y = exp(-(x + x)), with z = 1 / y in a branch of an If.
std::string chain() {
  auto branch = [](const char* op) {
    return graph({.nodes = {node(op, {"y"}, {"t"}), node("Neg", {"t"}, {"u"})}, .outputs = {value_info("u", kFloat, {"n"})}}, op);
  };
  return model(
      graph({.nodes = {node("Add", {"x", "x"}, {"sum"}), node("Neg", {"sum"}, {"less"}), node("Exp", {"less"}, {"y"}),
                       node("If", {"c"}, {"z"},
                            {graph_attribute("then_branch", branch("Reciprocal")), graph_attribute("else_branch", branch("Abs"))})},
             .inputs = {value_info("x", kFloat, {"n"}), value_info("c", kBool, {})},
             .outputs = {value_info("y", kFloat, {"n"}), value_info("z", kFloat, {"n"})}}));
}

Session session_on(const std::string& device, const std::string& precision = "") {
  SessionOptions options;
  options.device = device;
  options.precision = precision;
  return Session(Model::from_bytes(onnx::test::bytes_of(chain())), options);
}

size_t occurrences(const std::string& text, const std::string& of) {
  size_t count = 0;
  for (size_t at = text.find(of); at != std::string::npos; at = text.find(of, at + 1)) ++count;
  return count;
}

TEST(DeviceForms, FusedOperatorsAreMadeForDevicesThatNameThem) {
  register_device("plain-kernels", {});
  register_device("fused-kernels", {"FusedElementwise"});
  for (const char* device : {"plain-kernels", "fused-kernels"}) {
    Session session = session_on(device);
    const std::string nodes = session.to_text("devices");
    const bool fuses = std::string(device) == "fused-kernels";
    EXPECT_EQ(occurrences(nodes, "FusedElementwise"), fuses ? 1U : 0U) << nodes;
    Tensor x(DType::float32, {3});
    for (float& value : x.span<float>()) value = 0.25F;
    auto outputs = session.run({{"x", x}, {"c", Tensor::scalar(true)}});
    for (float value : outputs[0].tensor().span<float>()) EXPECT_NEAR(value, 0.60653066F, 1e-6F);
    for (float value : outputs[1].tensor().span<float>()) EXPECT_NEAR(value, -1.6487213F, 1e-6F);
  }
}

TEST(DeviceForms, APrecisionThatADeviceDoesNotKnowIsRefused) {
  register_device("plain-kernels", {});
  try {
    session_on("plain-kernels", "bfloat16");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("a device with kernels of its own has no precision"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace treadle::testing
