// Items (sort keys). sort.comp sorts them by `high`, then by `low`, then by `index`.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
struct Item {
  uint high, low, index;
};
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Items { Item at[]; };
