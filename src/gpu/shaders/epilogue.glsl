// What products and convolutions compute on their results before they store them. The function's code is written at run time
// (gpu/epilogue_writer.h) from the node's chain; a, b and c are elements of up to three operands.
layout(constant_id = 0) const uint OPERAND_A = 0;
layout(constant_id = 1) const uint OPERAND_B = 0;
layout(constant_id = 2) const uint OPERAND_C = 0;

float epilogue(float y, float a, float b, float c) { return y; }

// The element of an operand, by how it lies: 0 none, 1 one number, 2 as the result, 3 one for each channel, 4 one for each row of the result.
float operand_element(uint lies, Elements values, uint element, uint channel, uint row) {
  if (lies == 0) return 0;
  return to_number(values.at[lies == 1 ? 0 : lies == 2 ? element : lies == 3 ? channel : row]);
}

// Rounds y as a node on its own stores it.
float finished(float y, Elements operands[3], uint element, uint channel, uint row) {
  const float a = operand_element(OPERAND_A, operands[0], element, channel, row);
  const float b = operand_element(OPERAND_B, operands[1], element, channel, row);
  const float c = operand_element(OPERAND_C, operands[2], element, channel, row);
  return epilogue(to_number(to_element(y)), a, b, c);
}
