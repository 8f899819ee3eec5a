/* The C side of the tests of ffi/: it keeps what it was given, so that the test can ask for it. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct bytes64 { uint8_t bytes[64]; };

static struct {
  uint64_t number;
  uint8_t bytes[256];
  uint64_t calls;
} kept;

int32_t keep_i32(int32_t value) { kept.number = (uint64_t)(int64_t)value; return value; }
int32_t keep_u32(uint32_t value) { kept.number = value; return 0; }
int32_t keep_u16(uint16_t value) { kept.number = value; return 0; }
int32_t keep_u8(uint8_t value) { kept.number = value; return 0; }
int32_t keep_u64(uint64_t value) { kept.number = value; return 0; }
int32_t keep_size(size_t value) { kept.number = value; return 0; }
int32_t keep_address(void *value) { kept.number = (uintptr_t)value; return 0; }
int32_t keep_bytes(const uint8_t *bytes, uint32_t length) { kept.calls++; memcpy(kept.bytes, bytes, length); return 0; }

/* More arguments than registers, of every type. */
int32_t keep_all(uint8_t a, uint16_t b, int32_t c, uint32_t d, uint64_t e, size_t f, void *g, const uint8_t *h, uint8_t i, int32_t j) {
  uint64_t all[] = {a, b, (uint64_t)(int64_t)c, d, e, f, (uintptr_t)g, h[0], i, (uint64_t)(int64_t)j};
  memcpy(kept.bytes, all, sizeof all);
  return 10;
}

int32_t keep_struct(void *out, struct bytes64 value) {
  kept.number = (uintptr_t)out;
  memcpy(kept.bytes, value.bytes, sizeof value);
  memset(&value, 0xee, sizeof value); /* by the ABI it is the callee's own */
  return 2;
}
int32_t keep_struct_flags(void *out, struct bytes64 value, uint32_t flags) {
  kept.number = (uintptr_t)out;
  memcpy(kept.bytes, value.bytes, sizeof value);
  memcpy(kept.bytes + sizeof value, &flags, sizeof flags);
  memset(&value, 0xee, sizeof value);
  return 3;
}

void *kept_address(void) { return &kept; }
void keep_nothing(void) { kept.calls++; }
uint32_t give_u32(uint64_t value) { return (uint32_t)value; }
int64_t give_i64(uint64_t value) { return (int64_t)value; }
void *give_address(uint64_t value) { return (void *)value; }
const char *give_text(int32_t which) { return which == 0 ? "" : which == 1 ? "gr\xc3\xbc\xc3\x9f" : "plain"; }

void write_u64(uint64_t *to, uint64_t value) { *to = value; }
void write_two(uint64_t *first, int32_t *second) { *first = 0x0123456789abcdef; *second = -7; }
uint64_t *new_block(uint64_t value) { uint64_t *block = malloc(4096); *block = value; return block; }
int32_t first_of(const uint64_t *block) { return (int32_t)*block; }

int32_t fail_with(int32_t code) { errno = code; return -1; }
