// Sums over a group of 256 invocations, in a fixed order.
shared float group_parts[256];

float over_group(float value) {
  const uint own = gl_LocalInvocationIndex;
  group_parts[own] = value;
  barrier();
  for (uint reach = 128; reach > 0; reach /= 2) {
    if (own < reach) group_parts[own] += group_parts[own + reach];
    barrier();
  }
  const float result = group_parts[0];
  barrier();
  return result;
}

uint group_index() { return gl_WorkGroupID.y * 32768 + gl_WorkGroupID.x; }
uint element_index() { return group_index() * 256 + gl_LocalInvocationIndex; }
