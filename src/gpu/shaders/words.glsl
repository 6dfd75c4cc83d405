// Elements that are only copied are treated as words of 1, 2 or 4 bytes; longer elements consist of several words. The build defines one of
// ELEMENT_B1, ELEMENT_B2 and ELEMENT_B4 accordingly.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_shader_16bit_storage : require

#if defined(ELEMENT_B1)
#define WORD uint8_t
#elif defined(ELEMENT_B2)
#define WORD uint16_t
#else
#define WORD uint
#endif

layout(buffer_reference, scalar, buffer_reference_align = 1) buffer Words { WORD at[]; };
