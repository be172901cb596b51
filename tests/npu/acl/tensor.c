/* Descriptions that callers make for aclnn calls: tensors, scalars, arrays, lists. And elements by type. */
#include "tensor.h"

#include <stdlib.h>
#include <string.h>

size_t bytes_of(int type) {
    switch (type) {
        case I8: case U8: case BOOL: return 1;
        case F16: case BF16: case I16: return 2;
        case F32: case I32: return 4;
        case F64: case I64: return 8;
        default: return 0;
    }
}

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static uint32_t to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static double from_half(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
    if (exponent == 31) return from_bits(sign | 0x7F800000 | fraction << 13);
    if (exponent) return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    float tiny = (float)fraction / (float)(1 << 24);
    return sign ? -tiny : tiny;
}

/* Rounds to the nearest, ties to even, by adding and taking away a number that leaves no room for the lower bits. */
static uint16_t to_half(float value) {
    uint16_t sign = (uint16_t)(to_bits(value) >> 16 & 0x8000);
    uint32_t bits = to_bits(value) & 0x7FFFFFFF;
    if (bits > 0x7F800000) return sign | 0x7E00;
    if (bits >= 0x477FF000) return sign | 0x7C00;
    if (bits < 0x38800000) return (uint16_t)(sign | (to_bits(from_bits(bits) + 0.5f) - to_bits(0.5f)));
    bits += 0xFFF + (bits >> 13 & 1);
    return (uint16_t)(sign | ((bits >> 13) - (112 << 10)));
}

static uint16_t to_bfloat(float value) {
    uint32_t bits = to_bits(value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return 0x7FC0;
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

#define LOAD(ctype)                   \
    do {                              \
        ctype value;                  \
        memcpy(&value, at, sizeof value); \
        return (double)value;         \
    } while (0)

#define STORE(ctype, converted)             \
    do {                                    \
        ctype stored = (ctype)(converted);  \
        memcpy(at, &stored, sizeof stored); \
    } while (0)

double load(const char *at, int type) {
    uint16_t half;
    switch (type) {
        case F32: LOAD(float);
        case F64: LOAD(double);
        case I8: LOAD(int8_t);
        case U8: case BOOL: LOAD(uint8_t);
        case I16: LOAD(int16_t);
        case I32: LOAD(int32_t);
        case I64: LOAD(int64_t);
        case F16: memcpy(&half, at, 2); return from_half(half);
        default: memcpy(&half, at, 2); return from_bits((uint32_t)half << 16);
    }
}

int64_t load_index(const char *at, int type) {
    int64_t wide;
    if (type != I64) return (int64_t)load(at, type);
    memcpy(&wide, at, sizeof wide);
    return wide;
}

void store(char *at, int type, double value) {
    switch (type) {
        case F32: STORE(float, value); break;
        case F64: STORE(double, value); break;
        case I8: STORE(int8_t, (int64_t)value); break;
        case U8: STORE(uint8_t, (int64_t)value); break;
        case BOOL: STORE(uint8_t, value != 0); break;
        case I16: STORE(int16_t, (int64_t)value); break;
        case I32: STORE(int32_t, (int64_t)value); break;
        case I64: STORE(int64_t, value); break;
        case F16: STORE(uint16_t, to_half((float)value)); break;
        default: STORE(uint16_t, to_bfloat((float)value)); break;
    }
}

void store_index(char *at, int type, int64_t value) {
    if (type == I64) memcpy(at, &value, sizeof value);
    else store(at, type, (double)value);
}

int64_t count_of(const tensor *t) {
    int64_t count = 1;
    for (int i = 0; i < t->rank; i++) count *= t->sizes[i];
    return count;
}

/* Functions that return a pointer: NULL is their error. */
#define ENTER_POINTER                                                \
    static struct site site = {.name = __func__};                    \
    if (enter(&site, INITIALIZED, 0, NULL)) return NULL

static void *leave_with(void *pointer) {
    leave(OK);
    return pointer;
}

static void *refuse(int code) {
    leave(code);
    return NULL;
}

API void *aclCreateTensor(const int64_t *sizes, uint64_t rank, int type, const int64_t *strides, int64_t offset,
                          int format, const int64_t *storage_sizes, uint64_t storage_rank, void *data) {
    ENTER_POINTER;
    if (rank > MAX_DIMS || (rank && !sizes) || (storage_rank && !storage_sizes))
        return refuse(fail(NN_PARAM, "%llu dimensions", (unsigned long long)rank));
    if (!bytes_of(type) || offset < 0) return refuse(fail(NN_PARAM, "type %d, offset %lld", type, (long long)offset));
    if (format != ND && format != -1 && format != (rank == 3 ? NCL : rank == 4 ? NCHW : rank == 5 ? NCDHW : ND))
        return refuse(fail(NN_PARAM, "format %d of %llu dimensions", format, (unsigned long long)rank));
    tensor *t = new_object(TENSOR, sizeof *t, device_of(data));
    t->type = type;
    t->format = format;
    t->rank = (int)rank;
    t->offset = offset;
    t->storage = 1;
    t->data = data;
    int64_t step = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        t->sizes[i] = sizes[i];
        t->strides[i] = strides ? strides[i] : step;
        step *= sizes[i];
    }
    for (uint64_t i = 0; i < storage_rank; i++) t->storage *= storage_sizes[i];
    return leave_with(t);
}

API void *aclCreateScalar(void *value, int type) {
    ENTER_POINTER;
    if (!value || !bytes_of(type)) return refuse(fail(NN_PARAM, "a scalar of type %d at %p", type, value));
    struct scalar *scalar = new_object(SCALAR, sizeof *scalar, -1);
    scalar->value = load(value, type);
    return leave_with(scalar);
}

API void *aclCreateIntArray(const int64_t *values, uint64_t count) {
    ENTER_POINTER;
    if (count && !values) return refuse(fail(NN_NULL, "the values are NULL"));
    struct int_array *array = new_object(INT_ARRAY, sizeof *array + count * sizeof *values, -1);
    array->count = count;
    if (count) memcpy(array->values, values, count * sizeof *values);
    return leave_with(array);
}

API void *aclCreateBoolArray(const _Bool *values, uint64_t count) {
    ENTER_POINTER;
    if (count && !values) return refuse(fail(NN_NULL, "the values are NULL"));
    struct bool_array *array = new_object(BOOL_ARRAY, sizeof *array + count * sizeof *values, -1);
    array->count = count;
    if (count) memcpy(array->values, values, count * sizeof *values);
    return leave_with(array);
}

API void *aclCreateTensorList(void *const *tensors, uint64_t count) {
    ENTER_POINTER;
    if (!tensors && count) return refuse(fail(NN_NULL, "the tensors are NULL"));
    for (uint64_t i = 0; i < count; i++)
        if (!find_object(tensors[i], TENSOR, "aclTensor")) return refuse(NN_PARAM);
    struct tensor_list *list = new_object(TENSOR_LIST, sizeof *list + count * sizeof *tensors, -1);
    list->count = count;
    if (count) memcpy(list->tensors, tensors, count * sizeof *tensors);
    return leave_with(list);
}

static int destroy(const void *handle, enum kind kind, const char *what) {
    struct object *object = find_object(handle, kind, what);
    if (!object) return NN_PARAM;
    if (kind == TENSOR_LIST) { /* a list owns its tensors */
        struct tensor_list *list = (struct tensor_list *)object;
        for (uint64_t i = 0; i < list->count; i++) {
            struct object *t = find_object(list->tensors[i], TENSOR, "aclTensor of a list");
            if (t) end_object(t);
        }
    }
    end_object(object);
    return OK;
}

API int aclDestroyTensor(const void *handle) {
    ENTER_RELEASE(INITIALIZED);
    int code = destroy(handle, TENSOR, "aclTensor");
    LEAVE_RELEASE(code);
}

API int aclDestroyScalar(const void *handle) {
    ENTER_RELEASE(INITIALIZED);
    int code = destroy(handle, SCALAR, "aclScalar");
    LEAVE_RELEASE(code);
}

API int aclDestroyIntArray(const void *handle) {
    ENTER_RELEASE(INITIALIZED);
    int code = destroy(handle, INT_ARRAY, "aclIntArray");
    LEAVE_RELEASE(code);
}

API int aclDestroyBoolArray(const void *handle) {
    ENTER_RELEASE(INITIALIZED);
    int code = destroy(handle, BOOL_ARRAY, "aclBoolArray");
    LEAVE_RELEASE(code);
}

API int aclDestroyTensorList(const void *handle) {
    ENTER_RELEASE(INITIALIZED);
    int code = destroy(handle, TENSOR_LIST, "aclTensorList");
    LEAVE_RELEASE(code);
}
