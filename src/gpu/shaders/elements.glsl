// ELEMENT is the type of elements in memory, NUMBER the type in which shaders compute; to_number() and to_element() convert between them.
// The build defines one of ELEMENT_F32, ELEMENT_F16, ELEMENT_BF16, ELEMENT_F64 (floats), ELEMENT_I32 and ELEMENT_I64.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_16bit_storage : require
#if defined(ELEMENT_I64)
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#endif

#if defined(ELEMENT_F32)
#define ELEMENT float
#define NUMBER float
#elif defined(ELEMENT_F16)
#define ELEMENT uint16_t
#define NUMBER float
#elif defined(ELEMENT_BF16)
#define ELEMENT uint16_t
#define NUMBER float
#elif defined(ELEMENT_F64)
#define ELEMENT double
#define NUMBER double
#elif defined(ELEMENT_I32)
#define ELEMENT int
#define NUMBER int
#elif defined(ELEMENT_I64)
#define ELEMENT int64_t
#define NUMBER int64_t
#endif

layout(buffer_reference, scalar, buffer_reference_align = 2) buffer Elements { ELEMENT at[]; };

// These are macros, since functions with 16-bit parameters would need 16-bit arithmetic, which fewer devices support.
#if defined(ELEMENT_BF16)
#define to_number(e) uintBitsToFloat(uint(e) << 16)
#include "bfloat16.glsl"
#define to_element(x) uint16_t(rounded_word(x))
#elif defined(ELEMENT_F16)
#define to_number(e) unpackHalf2x16(uint(e)).x
#include "float16.glsl"
#define to_element(x) uint16_t(half_word(x))
#else
#define to_number(e) NUMBER(e)
#define to_element(x) ELEMENT(x)
#endif
