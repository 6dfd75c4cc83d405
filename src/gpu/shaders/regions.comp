// RoiAlign and MaxRoiPool. Each invocation computes one bin (part) of a region, for one channel.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "elements.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint KIND = 0;
const uint MEAN = 0, LARGEST_SAMPLE = 1, LARGEST_ELEMENT = 2;  // LARGEST_ELEMENT: MaxRoiPool

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Images { int at[]; };  // 64-bit indices, low word first
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Fault { uint site; };

layout(push_constant, scalar) uniform Push {
  Elements y, x, regions;
  Images images;  // RoiAlign: image of each region (in MaxRoiPool, a region begins with its image)
  Fault fault;    // set to `image_site` if an image does not exist, to `span_site` if a bin has too many samples
  uint image_site, span_site;
  uint count;     // number of elements of y
  int batch, channels, height, width, out_height, out_width;
  int samples;    // samples per bin along an axis; 0: as many as pixels that the bin spans
  uint half_pixel;
  float scale;
} p;

NUMBER sampled(uint plane, NUMBER h, NUMBER w, inout NUMBER largest, inout bool is_first) {
  if (!(h >= NUMBER(-1) && h <= NUMBER(p.height) && w >= NUMBER(-1) && w <= NUMBER(p.width))) {
    if (is_first || largest < NUMBER(0)) largest = NUMBER(0);
    is_first = false;
    return NUMBER(0);
  }
  h = max(h, NUMBER(0)), w = max(w, NUMBER(0));
  int h0 = int(h), w0 = int(w), h1 = h0 + 1, w1 = w0 + 1;
  NUMBER dh = h - NUMBER(h0), dw = w - NUMBER(w0);
  if (h0 >= p.height - 1) h0 = h1 = p.height - 1, dh = NUMBER(0);
  if (w0 >= p.width - 1) w0 = w1 = p.width - 1, dw = NUMBER(0);
  const NUMBER up = NUMBER(1) - dh, left = NUMBER(1) - dw;
  NUMBER sum = NUMBER(0), largest_part = NUMBER(0);
  for (int i = 0; i < 4; ++i) {
    const NUMBER weight = (i < 2 ? up : dh) * ((i & 1) == 0 ? left : dw);
    const NUMBER part = weight * to_number(p.x.at[plane + uint((i < 2 ? h0 : h1) * p.width + ((i & 1) == 0 ? w0 : w1))]);
    if (i == 0 || part > largest_part) largest_part = part;
    sum += part;
  }
  if (is_first || largest_part > largest) largest = largest_part;
  is_first = false;
  return sum;
}

// Returns the range of samples, along one axis of a bin, that may be inside the image. Only these are visited, so a huge region costs no
// more than the whole image.
ivec2 samples_inside(NUMBER start, NUMBER extent_of_part, int samples, int extent) {
  if (!(extent_of_part > NUMBER(0))) return ivec2(0, samples);
  const NUMBER each = extent_of_part / NUMBER(samples), most = NUMBER(samples);
  const NUMBER low = (NUMBER(-1) - start) / each - NUMBER(2), high = (NUMBER(extent) - start) / each + NUMBER(2);
  const int first = low > NUMBER(0) ? int(min(low, most)) : 0;
  const int end = high < most ? int(max(high, NUMBER(0))) : samples;
  return ivec2(first, max(first, end));
}

int samples_along(NUMBER extent_of_part) {
  if (p.samples > 0) return p.samples;
  if (!(extent_of_part < NUMBER(100000))) {
    p.fault.site = p.span_site;
    return 0;
  }
  return int(max(ceil(extent_of_part), NUMBER(0)));
}

NUMBER aligned(uint region, int image, int channel, ivec2 bin) {
  const NUMBER offset = NUMBER(p.half_pixel != 0 ? 0.5 : 0.0), scale = NUMBER(p.scale);
  NUMBER corner[4];
  for (uint i = 0; i < 4; ++i) corner[i] = to_number(p.regions.at[4 * region + i]) * scale - offset;
  NUMBER width = corner[2] - corner[0], height = corner[3] - corner[1];
  // Without half pixels, a malformed region is treated as one pixel. NaN is kept, which max() would not guarantee.
  if (p.half_pixel == 0) {
    if (width < NUMBER(1)) width = NUMBER(1);
    if (height < NUMBER(1)) height = NUMBER(1);
  }
  const NUMBER part_height = height / NUMBER(p.out_height), part_width = width / NUMBER(p.out_width);
  const int rows = samples_along(part_height), columns = samples_along(part_width);
  const NUMBER top = corner[1] + NUMBER(bin.x) * part_height, left = corner[0] + NUMBER(bin.y) * part_width;
  const ivec2 inside_rows = samples_inside(top, part_height, rows, p.height);
  const ivec2 inside_columns = samples_inside(left, part_width, columns, p.width);
  const int inside = (inside_rows.y - inside_rows.x) * (inside_columns.y - inside_columns.x);
  const uint plane = uint(image * p.channels + channel) * uint(p.height * p.width);
  NUMBER sum = NUMBER(0), largest = NUMBER(0);
  bool is_first = inside == rows * columns;  // true: `largest` has no value yet; false: samples outside the image give 0
  for (int i = inside_rows.x; i < inside_rows.y; ++i)
    for (int k = inside_columns.x; k < inside_columns.y; ++k) {
      const NUMBER h = top + (NUMBER(i) + NUMBER(0.5)) * part_height / NUMBER(rows);
      sum += sampled(plane, h, left + (NUMBER(k) + NUMBER(0.5)) * part_width / NUMBER(columns), largest, is_first);
    }
  return KIND == MEAN ? sum / (NUMBER(max(rows, 1)) * NUMBER(max(columns, 1))) : largest;
}

int whole(NUMBER x) { return int(clamp(isnan(x) ? NUMBER(0) : x, NUMBER(-1e9), NUMBER(1e9))); }
NUMBER rounded(NUMBER x) { return x < NUMBER(0) ? -floor(NUMBER(0.5) - x) : floor(x + NUMBER(0.5)); }

NUMBER pooled(uint region, int image, int channel, ivec2 bin) {
  ivec4 corner;  // in the order left, top, right, bottom
  for (int i = 0; i < 4; ++i) corner[i] = whole(rounded(to_number(p.regions.at[5 * region + 1 + uint(i)]) * NUMBER(p.scale)));
  const ivec2 extents = ivec2(p.height, p.width), parts = ivec2(p.out_height, p.out_width), start = corner.yx;
  ivec2 first, last;
  for (int axis = 0; axis < 2; ++axis) {
    const NUMBER part = NUMBER(max(corner[3 - axis] - start[axis] + 1, 1)) / NUMBER(parts[axis]);
    first[axis] = clamp(int(floor(NUMBER(bin[axis]) * part)) + start[axis], 0, extents[axis]);
    last[axis] = clamp(int(ceil(NUMBER(bin[axis] + 1) * part)) + start[axis], 0, extents[axis]);
  }
  if (any(greaterThanEqual(first, last))) return NUMBER(0);
  const uint plane = uint(image * p.channels + channel) * uint(p.height * p.width);
  NUMBER largest = NUMBER(-1.0 / 0.0);
  for (int h = first.x; h < last.x; ++h)
    for (int w = first.y; w < last.y; ++w) {
      const NUMBER x = to_number(p.x.at[plane + uint(h * p.width + w)]);
      if (x > largest) largest = x;  // ignores NaN, as on the host
    }
  return largest;
}

void main() {
  const uint element = (gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x) * 256 + gl_LocalInvocationIndex;
  if (element >= p.count) return;
  const int at = int(element) % (p.out_height * p.out_width), channel = int(element) / (p.out_height * p.out_width) % p.channels;
  const uint region = element / uint(p.out_height * p.out_width * p.channels);
  const ivec2 bin = ivec2(at / p.out_width, at % p.out_width);
  int image;
  bool exists;
  if (KIND == LARGEST_ELEMENT) {
    image = whole(to_number(p.regions.at[5 * region]));
    exists = image >= 0 && image < p.batch;
  } else {
    image = p.images.at[2 * region];
    exists = image >= 0 && image < p.batch && p.images.at[2 * region + 1] == 0;
  }
  NUMBER y = NUMBER(0);
  if (!exists)
    p.fault.site = p.image_site;
  else
    y = KIND == LARGEST_ELEMENT ? pooled(region, image, channel, bin) : aligned(region, image, channel, bin);
  p.y.at[element] = to_element(y);
}
