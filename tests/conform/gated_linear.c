/* Gated linear attention of one case: cc -O2 gated_linear.c -lm -o gated_linear && ./gated_linear DIR/NAME
   Reads NAME.safetensors as `linattn-ref conform --write` wrote it, and writes NAME.answer.safetensors in float32. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *header, *data;

/* The numbers of a tensor and its shape; NULL where there is none. */
static double *tensor(const char *name, long shape[4]) {
    char key[64];
    snprintf(key, sizeof key, "\"%s\":{\"dtype\":\"F64\",\"shape\":[", name);
    char *at = strstr(header, key);
    if (!at) return NULL;
    at += strlen(key);
    for (int i = 0; i < 4 && *at != ']'; i++, at += *at == ',') shape[i] = strtol(at, &at, 10);
    at = strstr(at, "data_offsets\":[");
    return (double *)(data + strtol(at + 15, NULL, 10));
}

int main(int count, char **words) {
    char path[4096], answer[4096];
    unsigned long long size;
    if (count != 2) return 2;
    snprintf(path, sizeof path, "%s.safetensors", words[1]);
    FILE *file = fopen(path, "rb");
    if (!file || fread(&size, 8, 1, file) != 1) return 2;
    fseek(file, 0, SEEK_END);
    long bytes = ftell(file) - 8;
    fseek(file, 8, SEEK_SET);
    header = malloc(bytes + 1);
    if (fread(header, 1, bytes, file) != (size_t)bytes) return 2;
    data = malloc(bytes - size);
    memcpy(data, header + size, bytes - size);
    header[size] = 0;
    long q_shape[4], v_shape[4], rest[4];
    double *q = tensor("q", q_shape), *k = tensor("k", rest), *v = tensor("v", v_shape);
    double *gate = tensor("log_gate", rest), *first = tensor("state.s", rest);
    if (strstr(header, "\"offsets\"") || strstr(header, "\"key_mask\"") || strstr(header, "groups")) return 3; /* not offered */
    char *option = strstr(header, "scale\\\":"); /* of the page's options, in __metadata__ */
    long rows = q_shape[0] * q_shape[1], n = q_shape[2], d = q_shape[3], m = v_shape[3];
    float scale = option ? strtof(option + 8, NULL) : 1 / sqrtf((float)d);
    float *out = calloc(rows * n * m, 4), *s = malloc(d * m * 4);
    for (long r = 0; r < rows; r++) {
        for (long c = 0; c < d * m; c++) s[c] = first ? (float)first[r * d * m + c] : 0;
        for (long i = r * n; i < (r + 1) * n; i++)
            for (long c = 0; c < d; c++)
                for (long j = 0; j < m; j++) {
                    s[c * m + j] = expf((float)gate[i]) * s[c * m + j] + (float)k[i * d + c] * (float)v[i * m + j];
                    out[i * m + j] += (float)q[i * d + c] * scale * s[c * m + j];
                }
    }
    snprintf(path, sizeof path, "{\"out\":{\"dtype\":\"F32\",\"shape\":[%ld,%ld,%ld,%ld],\"data_offsets\":[0,%ld]}}",
             q_shape[0], q_shape[1], n, m, rows * n * m * 4);
    snprintf(answer, sizeof answer, "%s.answer.safetensors", words[1]);
    file = fopen(answer, "wb");
    size = strlen(path);
    return !file || fwrite(&size, 8, 1, file) != 1 || !fwrite(path, size, 1, file) || !fwrite(out, rows * n * m * 4, 1, file) || fclose(file);
}
