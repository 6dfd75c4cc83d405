// The values of the 16 codes in the 4-bit types of bitsandbytes. FP4 codes consist of sign, exponent and mantissa; NF4 codes stand for
// quantiles of the normal distribution (Dettmers et al. 2023, arXiv:2305.14314, appendix E).
#pragma once

namespace treadle::kernels {

inline constexpr float kFp4[16] = {0.0F,  5.208333333e-03F,  0.66666667F,  1.0F,  0.33333333F,  0.5F,  0.16666667F,  0.25F,
                                   -0.0F, -5.208333333e-03F, -0.66666667F, -1.0F, -0.33333333F, -0.5F, -0.16666667F, -0.25F};
inline constexpr float kNf4[16] = {-1.0F,
                                   -0.6961928009986877F,
                                   -0.5250730514526367F,
                                   -0.39491748809814453F,
                                   -0.28444138169288635F,
                                   -0.18477343022823334F,
                                   -0.09105003625154495F,
                                   0.0F,
                                   0.07958029955625534F,
                                   0.16093020141124725F,
                                   0.24611230194568634F,
                                   0.33791524171829224F,
                                   0.44070982933044434F,
                                   0.5626170039176941F,
                                   0.7229568362236023F,
                                   1.0F};

}  // namespace treadle::kernels
