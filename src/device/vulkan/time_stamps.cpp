#include "device/vulkan/time_stamps.h"

namespace treadle::vulkan {

TimeStamps::TimeStamps(const Connection& connection) : connection_(connection) {
  VkQueryPoolCreateInfo info{VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO};
  info.queryType = VK_QUERY_TYPE_TIMESTAMP;
  info.queryCount = kMost;
  connection_.check(connection_->CreateQueryPool(connection_.handle(), &info, nullptr, &pool_), "make room for time stamps");
}

TimeStamps::~TimeStamps() {
  if (connection_.is_of_this_process()) connection_->DestroyQueryPool(connection_.handle(), pool_, nullptr);
}

void TimeStamps::reset(VkCommandBuffer commands) {
  used_ = 0;
  ticks_ = std::make_shared<std::vector<uint64_t>>();
  connection_->CmdResetQueryPool(commands, pool_, 0, kMost);
}

TimeStamps::Stamp TimeStamps::stamp(VkCommandBuffer commands) {
  connection_->CmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, pool_, used_);
  return {ticks_, used_++};
}

void TimeStamps::read() {
  ticks_->resize(used_);
  const VkResult result = connection_->GetQueryPoolResults(connection_.handle(), pool_, 0, used_, used_ * sizeof(uint64_t), ticks_->data(),
                                                           sizeof(uint64_t), VK_QUERY_RESULT_64_BIT);
  if (result == VK_NOT_READY) return ticks_->clear();
  connection_.check(result, "read time stamps");
}

}  // namespace treadle::vulkan
