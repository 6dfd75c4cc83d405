#include "graph/internal_attributes.h"

#include <fmt/format.h>

#include "treadle/error.h"

namespace treadle {

void refuse_internal_attributes(const Node& node) {
  for (const auto& [name, value] : node.attributes)
    if (name.starts_with(kInternalPrefix))
      throw Error(ErrorCode::not_implemented,
                  fmt::format("the attribute \"{}\" is not one of the operator's: it is for graphs in memory, not for files", name))
          .add_context(describe(node));
}

}  // namespace treadle
