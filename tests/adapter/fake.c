/* A fake libibverbs: InfiniBand adapters, shared by the processes of this machine that name the same folder in FAKE_ADAPTER.
 *
 * It promises what the InfiniBand specification does, and no more. Requests of a queue pair are executed in order, but the bytes of an
 * RDMA write become visible late and in any order (o9-20, o9-21). They are visible before a later send, immediate value, read or atomic
 * of the same queue pair takes effect, and before the write is acknowledged.
 *
 * FAKE_ADAPTER   folder of the sockets by which the processes exchange frames
 * FAKE_LATE_MS   delay of the bytes of each write, except its last 8, which are visible at once; 0 (default): all at once
 * FAKE_IN_ORDER  answer of ibv_query_qp_data_in_order; 1 also makes the bytes of one write visible in order: the write is delayed as a
 *                whole if it has more than 64 bytes, so that shorter later ones overtake it. 2: only for queue pairs to themselves
 * FAKE_PKEYS     partition keys of the port, e.g. 7fff,8001
 * FAKE_DEVICES   number of adapters, with one port each: fake0, fake1 and so on (default: 1)
 * FAKE_HOST      a number that makes the adapters' GUIDs those of another host
 * FAKE_LID       LID of the ports (default: 1)
 * FAKE_HOLD      a LID: connecting to it blocks while the file FAKE_ADAPTER/hold exists; then FAKE_ADAPTER/held exists too
 * FAKE_RESOLVE   a LID: creating an address handle of it blocks in the same way
 * FAKE_SYSFS     folder that stands for /sys/class/infiniband
 * FAKE_VECTORS   number of completion vectors (default: 1)
 *
 * These are lists, with an entry for each adapter. The last entry holds for all further ones.
 *
 * FAKE_PAIRS     number of reliable queue pairs that a process can have (default: 8192)
 * FAKE_GID       GID of the port, as 32 hexadecimal digits. Frames between ports of two subnets are lost
 * FAKE_TRANSPORT transport, as ibv_transport_type numbers it (default: 0)
 * FAKE_LACKS     functions that the adapter lacks, e.g. srq+atomics: atomics, srq, ud, rc; or adds, which it reports but refuses; or
 *                routes: no address can be resolved
 * FAKE_DEAF      0 (default): all messages pass; 1: none reaches another process; more: those of at least so many bytes do not
 *
 * While the file FAKE_ADAPTER/full exists, no memory can be registered. While FAKE_ADAPTER/mute.N exists, adapter N accepts
 * datagrams, but neither sends nor completes them. Nor does it later, until their queue pair is reset. While FAKE_ADAPTER/refuse.N
 * exists, adapter N refuses all requests of connections.
 *
 * With _1 at its end, a variable holds for rank 1.
 *
 * Each completion queue with a channel appends its vector, as a line, to the file FAKE_ADAPTER/vectors, and each address handle its
 * LID to FAKE_ADAPTER/handles. Each address handle and each connection of a queue pair appends a line to FAKE_ADAPTER/classes: `ah` or
 * `qp`, its service level, and its traffic class or `no GRH`.
 *
 * A datagram of 16 bytes to the sockets of all processes is an asynchronous event: its type, the new LID of the ports or 0, the
 * process that it happens to, and the number of the adapter or ffffffff for all, 32 bits each. Frames to a former LID are lost. At an
 * event that a GID changed, the last byte of the ports' GIDs becomes the given number, and frames with a GRH to a former GID are lost.
 * An event with LID 65535 changes no address: from then on the ports and GIDs cannot be queried. A port is down from
 * IBV_EVENT_PORT_ERR to IBV_EVENT_PORT_ACTIVE: it loses all frames. With bit 16 of the type set, the event is not reported.
 *
 * The file FAKE_ADAPTER/datagrams.PID has, for each adapter of a process, the number of datagrams with an immediate value that it has
 * sent, 64 bits each.
 *
 * One mutex protects all state. A thread per process executes the requests of peers.
 */
#define _GNU_SOURCE
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#undef ibv_query_port
#undef ibv_reg_mr

enum { PROCESSES = 1024, PAIR_BITS = 14, PART = 32 << 10, GRH = 40, WORD = 8, DEVICES = 8 };
enum kind { REQUEST, ANSWER, DATAGRAM };

struct frame {
    uint32_t kind, op, status, from, to, key, imm, qkey;
    uint32_t dlid, dgid; /* the last byte of the GID; 0 without a GRH */
    uint32_t length, at, part; /* bytes of the message, and those in this frame */
    uint64_t number, address, compare_add, swap, subnet;
};

struct packet {
    struct packet *next;
    struct frame frame;
    char bytes[];
};

struct completion {
    struct completion *next;
    struct ibv_wc wc;
};

struct cq {
    struct ibv_cq public;
    struct completion *first, **last;
    int armed;
};

struct receive {
    struct receive *next;
    uint64_t wr_id;
    int pieces;
    struct ibv_sge sge[];
};

struct receives {
    struct receive *first, **last;
};

struct srq {
    struct ibv_srq public;
    struct receives receives;
};

struct sent {
    struct sent *next;
    uint64_t number, wr_id;
    struct ibv_sge sge;
    uint32_t op, status;
    int signalled, answered;
};

/* A request of the peer. */
struct message {
    struct message *next;
    struct frame frame;
    uint32_t got;
    int begun, done;
    uint64_t due;
    char *bytes;
};

struct qp {
    struct ibv_qp public;
    struct qp *next;
    uint32_t peer, psn, mtu, qkey, dlid, dgid;
    uint64_t posted;
    int mute;
    struct sent *sent, **sent_last;
    struct message *in, **in_last;
    struct receives receives;
};

struct ah {
    struct ibv_ah public;
    uint32_t dlid, dgid;
};

struct channel {
    struct ibv_comp_channel public;
    struct ibv_cq *cq;
};

struct event {
    struct event *next;
    struct ibv_async_event event;
};

struct context {
    struct ibv_context public;
    struct context *next;
    struct event *first, **last;
};

struct mr {
    struct ibv_mr public;
    struct mr *next;
    int access;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct ibv_device devices[DEVICES];
static struct context *contexts;
static uint64_t subnets[DEVICES];
static int down[DEVICES];
static unsigned deaf[DEVICES];
static uint64_t *datagrams;
static struct qp *pairs;
static struct mr *memory;
static uint32_t last_pair = 1, last_key = 1;
static int self = -1, in_socket = -1, wake = -1, late_ms, in_order, lid, hold, resolve, gid, silent;
static struct peer { int fd; struct packet *first, **last; } peers[PROCESSES];

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* The value for this rank, or for all. */
static const char *text(const char *name) {
    char of_rank[64];
    const char *rank = getenv("TRANSOM_RANK");
    snprintf(of_rank, sizeof of_rank, "%s_%s", name, rank ? rank : "");
    const char *value = getenv(of_rank);
    return value ? value : getenv(name);
}

static int setting(const char *name) {
    const char *value = text(name);
    return value ? atoi(value) : 0;
}

/* The entry of an adapter in a list; NULL if there is no list. */
static const char *entry(const char *name, const struct ibv_device *of) {
    const char *value = text(name);
    for (long at = of - devices; value && at && strchr(value, ','); at--)
        value = strchr(value, ',') + 1;
    return value;
}

static int lacks(const struct ibv_device *of, const char *function) {
    const char *all = entry("FAKE_LACKS", of), *found = all ? strstr(all, function) : NULL;
    return found && (size_t)(found - all) < strcspn(all, ",");
}

static void gid_of(const struct ibv_device *of, uint8_t *into) {
    const char *digits = entry("FAKE_GID", of);
    for (int at = 0; at < 16; at++) {
        unsigned byte = 0;
        sscanf((digits ? digits : "fe800000000000000000000000000001") + 2 * at, "%2x", &byte);
        into[at] = byte;
    }
    if (gid)
        into[15] = gid;
}

static int number_of(const struct qp *qp) { return qp->public.context->device - devices; }
static uint64_t subnet_of(const struct qp *qp) { return subnets[number_of(qp)]; }

static struct sockaddr_un address_of(int process) {
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    const char *folder = getenv("FAKE_ADAPTER");
    snprintf(name.sun_path, sizeof name.sun_path, "%s/%d", folder ? folder : "/tmp", process);
    return name;
}

static int connected(int process) {
    struct sockaddr_un name = address_of(process);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&name, sizeof name) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Sends queued frames as far as the receiver takes them. Those to a process that has ended are lost. */
static void flush(int process) {
    struct peer *peer = &peers[process];
    if (peer->fd < 0)
        peer->fd = connected(process);
    while (peer->first) {
        struct packet *packet = peer->first;
        size_t bytes = offsetof(struct packet, bytes) - offsetof(struct packet, frame) + packet->frame.part;
        if (peer->fd >= 0 && send(peer->fd, &packet->frame, bytes, MSG_NOSIGNAL) < 0 && (errno == EAGAIN || errno == ENOBUFS))
            return;
        peer->first = packet->next;
        if (!peer->first)
            peer->last = &peer->first;
        free(packet);
    }
}

static struct qp *pair_of(uint32_t number) {
    struct qp *qp = pairs;
    while (qp && qp->public.qp_num != number)
        qp = qp->next;
    return qp;
}

/* Whether the adapter of a queue pair loses a message to another process. */
static int is_lost(const struct qp *from, const struct frame *message) {
    unsigned shortest = deaf[number_of(from)];
    return shortest == 1 || (shortest && message->length >= shortest);
}

/* Sends a message as frames; `bytes` may be absent. */
static void say(struct frame frame, const char *bytes) {
    int process = frame.to >> PAIR_BITS;
    struct qp *from = pair_of(frame.from);
    if (from) {
        frame.subnet = subnet_of(from);
        frame.dlid = frame.kind == DATAGRAM ? frame.dlid : from->dlid;
        frame.dgid = frame.kind == DATAGRAM ? frame.dgid : from->dgid;
    }
    if (process >= PROCESSES || (from && (down[number_of(from)] || (process != self && is_lost(from, &frame)))))
        return;
    struct peer *peer = &peers[process];
    frame.at = 0;
    do {
        frame.part = bytes ? frame.length - frame.at : 0;
        if (frame.part > PART)
            frame.part = PART;
        struct packet *packet = malloc(sizeof *packet + frame.part);
        packet->next = NULL;
        packet->frame = frame;
        if (frame.part)
            memcpy(packet->bytes, bytes + frame.at, frame.part);
        *peer->last = packet;
        peer->last = &packet->next;
        frame.at += frame.part;
    } while (bytes && frame.at < frame.length);
    flush(process);
    uint64_t one = 1;
    if (peer->first && write(wake, &one, sizeof one) < 0)
        return;
}

static void complete(struct ibv_cq *of, struct ibv_wc wc) {
    struct cq *cq = (struct cq *)of;
    struct completion *made = calloc(1, sizeof *made);
    made->wc = wc;
    *cq->last = made;
    cq->last = &made->next;
    uint64_t one = 1;
    if (cq->armed && of->channel) {
        cq->armed = 0;
        if (write(of->channel->fd, &one, sizeof one) < 0)
            return;
    }
}

static void ended(struct qp *qp, struct sent *sent, uint32_t status) {
    if (status != IBV_WC_SUCCESS || sent->signalled)
        complete(qp->public.send_cq, (struct ibv_wc){ .wr_id = sent->wr_id, .status = status, .qp_num = qp->public.qp_num });
    qp->sent = sent->next;
    if (!qp->sent)
        qp->sent_last = &qp->sent;
    free(sent);
}

static void fail(struct qp *qp) {
    qp->public.state = IBV_QPS_ERR;
    while (qp->sent)
        ended(qp, qp->sent, IBV_WC_WR_FLUSH_ERR);
}

/* The memory that a peer names, or NULL. */
static char *reach(const struct frame *frame, int access) {
    for (struct mr *mr = memory; mr; mr = mr->next) {
        uint64_t start = (uint64_t)mr->public.addr;
        if (mr->public.rkey == frame->key && (mr->access & access) && frame->address >= start
            && frame->address + frame->length <= start + mr->public.length)
            return (char *)frame->address;
    }
    return NULL;
}

/* Takes a receive and copies a message to it; returns 0 if there is none. */
static int arrive(struct qp *qp, const struct frame *frame, const char *bytes, int has_imm, int opcode, int skip) {
    struct receives *from = qp->public.srq ? &((struct srq *)qp->public.srq)->receives : &qp->receives;
    struct receive *receive = from->first;
    if (!receive)
        return 0;
    from->first = receive->next;
    if (!from->first)
        from->last = &from->first;
    uint32_t left = opcode == IBV_WC_RECV ? frame->length : 0;
    for (int i = 0; i < receive->pieces && left; i++) {
        char *to = (char *)receive->sge[i].addr;
        uint32_t room = receive->sge[i].length;
        if (i == 0) {
            to += skip;
            room -= skip;
        }
        uint32_t take = left < room ? left : room;
        memcpy(to, bytes, take);
        bytes += take;
        left -= take;
    }
    complete(qp->public.recv_cq, (struct ibv_wc){
        .wr_id = receive->wr_id, .status = left ? IBV_WC_LOC_LEN_ERR : IBV_WC_SUCCESS, .opcode = opcode,
        .byte_len = frame->length + skip, .imm_data = frame->imm, .qp_num = qp->public.qp_num, .src_qp = frame->from,
        .wc_flags = has_imm ? IBV_WC_WITH_IMM : 0 });
    free(receive);
    return 1;
}

static void answer(struct qp *qp, const struct frame *request, uint32_t status, const char *bytes, uint32_t length) {
    say((struct frame){ .kind = ANSWER, .op = request->op, .status = status, .from = qp->public.qp_num, .to = request->from,
        .number = request->number, .length = length }, bytes);
}

/* Copies by whole words where it can, as adapters do. */
static void put(char *to, const char *from, size_t bytes) {
    if (((uint64_t)to & 7) == 0)
        for (; bytes >= WORD; bytes -= WORD, to += WORD, from += WORD) {
            uint64_t word;
            memcpy(&word, from, WORD);
            __atomic_store_n((uint64_t *)to, word, __ATOMIC_RELEASE);
        }
    for (; bytes; bytes--)
        __atomic_store_n(to++, *from++, __ATOMIC_RELEASE);
}

/* Makes all bytes of a write visible. */
static void show(struct message *message) {
    if (!message->done) {
        put((char *)message->frame.address, message->bytes, message->frame.length);
        message->done = 1;
    }
}

static void show_before(struct qp *qp, struct message *end) {
    for (struct message *each = qp->in; each != end; each = each->next)
        if (each->begun)
            show(each);
}

static uint32_t packets(struct qp *qp, uint32_t length) {
    return length ? (length + qp->mtu - 1) / qp->mtu : 1;
}

static void answered(struct qp *qp, const struct frame *frame, const char *bytes);

/* Executes a request; returns 0 if it must wait. */
static int execute(struct qp *qp, struct message *message) {
    struct frame *frame = &message->frame;
    char *at = NULL;
    if (frame->op == IBV_WR_RDMA_WRITE || frame->op == IBV_WR_RDMA_WRITE_WITH_IMM)
        at = frame->length ? reach(frame, IBV_ACCESS_REMOTE_WRITE) : (char *)1;
    else if (frame->op == IBV_WR_RDMA_READ)
        at = frame->length ? reach(frame, IBV_ACCESS_REMOTE_READ) : (char *)1;
    else if (frame->op == IBV_WR_SEND)
        at = (char *)1;
    else
        at = frame->address % WORD || (frame->op == IBV_WR_ATOMIC_FETCH_AND_ADD && lacks(qp->public.context->device, "adds"))
            ? NULL : reach(frame, IBV_ACCESS_REMOTE_ATOMIC);
    if (!at) {
        struct frame refusal = { .number = frame->number, .status = IBV_WC_REM_ACCESS_ERR };
        if (qp->peer == qp->public.qp_num)
            answered(qp, &refusal, NULL);
        else
            answer(qp, frame, IBV_WC_REM_ACCESS_ERR, NULL, 0);
        fail(qp);
        return 0;
    }
    if (frame->op == IBV_WR_RDMA_WRITE) {
        uint32_t at_once = in_order ? 64 : WORD;
        message->begun = 1;
        message->due = now() + late_ms;
        qp->psn += packets(qp, frame->length);
        if (late_ms == 0 || frame->length <= at_once)
            show(message);
        else if (!in_order)
            put(at + frame->length - WORD, message->bytes + frame->length - WORD, WORD);
        return 1;
    }
    show_before(qp, message);
    uint32_t length = 0;
    const char *bytes = NULL;
    uint64_t found;
    switch (frame->op) {
    case IBV_WR_SEND:
        if (!arrive(qp, frame, message->bytes, 0, IBV_WC_RECV, 0))
            return 0;
        break;
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        if (frame->length)
            put(at, message->bytes, frame->length);
        if (!arrive(qp, frame, NULL, 1, IBV_WC_RECV_RDMA_WITH_IMM, 0))
            return 0;
        break;
    case IBV_WR_RDMA_READ:
        bytes = at, length = frame->length;
        break;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
        found = frame->compare_add;
        __atomic_compare_exchange_n((uint64_t *)at, &found, frame->swap, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
        bytes = (char *)&found, length = WORD;
        break;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        found = __atomic_fetch_add((uint64_t *)at, frame->compare_add, __ATOMIC_SEQ_CST);
        bytes = (char *)&found, length = WORD;
        break;
    }
    qp->psn += packets(qp, frame->length);
    message->begun = message->done = 1;
    /* A read is answered at once: its bytes may change. Other answers follow those of earlier requests too. */
    answer(qp, frame, IBV_WC_SUCCESS, bytes, length);
    return 1;
}

/* Executes the requests that have arrived, as far as possible; returns whether some must be looked at again. */
static int progress(struct qp *qp) {
    if (qp->public.state != IBV_QPS_RTR && qp->public.state != IBV_QPS_RTS)
        return 0;
    for (struct message *each = qp->in; each; each = each->next) {
        int carries = each->frame.op == IBV_WR_RDMA_WRITE || each->frame.op == IBV_WR_RDMA_WRITE_WITH_IMM || each->frame.op == IBV_WR_SEND;
        if (!each->begun && ((carries && each->got < each->frame.length) || !execute(qp, each)))
            break;
        if (each->begun && each->due <= now())
            show(each);
    }
    while (qp->in && qp->in->done) {
        struct message *message = qp->in;
        if (message->frame.op == IBV_WR_RDMA_WRITE)
            answer(qp, &message->frame, IBV_WC_SUCCESS, NULL, 0);
        qp->in = message->next;
        if (!qp->in)
            qp->in_last = &qp->in;
        free(message->bytes);
        free(message);
    }
    return qp->in != NULL;
}

static void request(struct qp *qp, const struct frame *frame, const char *bytes) {
    struct message *message = NULL;
    if (frame->at) {
        for (message = qp->in; message && message->frame.number != frame->number;)
            message = message->next;
        if (!message)
            return;
    } else {
        message = calloc(1, sizeof *message);
        message->frame = *frame;
        int carries = frame->op != IBV_WR_RDMA_READ && frame->op != IBV_WR_ATOMIC_CMP_AND_SWP && frame->op != IBV_WR_ATOMIC_FETCH_AND_ADD;
        message->bytes = carries ? malloc(frame->length + 1) : NULL;
        *qp->in_last = message;
        qp->in_last = &message->next;
    }
    if (frame->part) {
        memcpy(message->bytes + frame->at, bytes, frame->part);
        message->got += frame->part;
    }
    progress(qp);
}

static void answered(struct qp *qp, const struct frame *frame, const char *bytes) {
    struct sent *sent = qp->sent;
    while (sent && sent->number != frame->number)
        sent = sent->next;
    if (!sent)
        return;
    if (frame->part)
        put((char *)sent->sge.addr + frame->at, bytes, frame->part);
    if (frame->at + frame->part < frame->length)
        return;
    sent->answered = 1;
    sent->status = frame->status;
    /* One answer acknowledges earlier writes too: they are visible. */
    while (qp->sent && qp->sent->answered) {
        uint32_t status = qp->sent->status;
        ended(qp, qp->sent, status);
        if (status != IBV_WC_SUCCESS) {
            fail(qp);
            return;
        }
    }
}

static void handle(const struct frame *frame, const char *bytes) {
    struct qp *qp = pair_of(frame->to);
    if (qp && (subnet_of(qp) != frame->subnet || (frame->dlid && frame->dlid != (uint32_t)lid) || down[number_of(qp)]))
        return;
    if (qp && frame->dgid) {
        uint8_t own[16];
        gid_of(qp->public.context->device, own);
        if (own[15] != frame->dgid)
            return;
    }
    int receives = qp && (qp->public.state == IBV_QPS_RTR || qp->public.state == IBV_QPS_RTS);
    if (frame->kind == DATAGRAM) {
        if (receives && qp->public.qp_type == IBV_QPT_UD && qp->qkey == frame->qkey)
            arrive(qp, frame, bytes, frame->op == IBV_WR_SEND_WITH_IMM, IBV_WC_RECV, GRH);
    } else if (!receives || qp->peer != frame->from) {
        if (frame->kind == REQUEST && !frame->at)
            say((struct frame){ .kind = ANSWER, .status = IBV_WC_RETRY_EXC_ERR, .from = frame->to, .to = frame->from, .number = frame->number,
                .subnet = frame->subnet }, NULL);
    } else if (frame->kind == REQUEST)
        request(qp, frame, bytes);
    else
        answered(qp, frame, bytes);
}

static void report(struct context *context, struct ibv_async_event of) {
    struct event *event = calloc(1, sizeof *event);
    event->event = of;
    *context->last = event;
    context->last = &event->next;
    uint64_t one = 1;
    if (write(context->public.async_fd, &one, sizeof one) < 0)
        abort();
}

static void happen(const uint32_t *event) {
    if (event[2] != (uint32_t)getpid())
        return;
    pthread_mutex_lock(&mutex);
    if (event[1] == 65535)
        silent = 1;
    else if (event[0] == IBV_EVENT_GID_CHANGE)
        gid = event[1];
    else if (event[1])
        lid = event[1];
    uint32_t type = event[0] & 0xffff, is_secret = event[0] >> 16;
    for (uint32_t device = 0; device < DEVICES; device++) {
        if (event[3] != UINT32_MAX && event[3] != device)
            continue;
        if (type == IBV_EVENT_PORT_ERR || type == IBV_EVENT_PORT_ACTIVE)
            down[device] = type == IBV_EVENT_PORT_ERR;
        for (struct context *each = contexts; each && !is_secret; each = each->next)
            if (each->public.device == &devices[device])
                report(each, (struct ibv_async_event){ .event_type = type, .element.port_num = 1 });
    }
    pthread_mutex_unlock(&mutex);
}

/* Appends a line to a file that tests read. */
__attribute__((format(printf, 2, 3))) static void append(const char *file, const char *format, ...) {
    char name[4096], line[64];
    snprintf(name, sizeof name, "%s/%s", getenv("FAKE_ADAPTER"), file);
    int log = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    va_list values;
    va_start(values, format);
    int length = vsnprintf(line, sizeof line, format, values);
    va_end(values);
    if (log < 0 || write(log, line, length) < 0)
        abort();
    close(log);
}

static void record(const char *file, int number) { append(file, "%d\n", number); }

static void record_class(const char *what, const struct ibv_ah_attr *to) {
    if (to->is_global)
        append("classes", "%s %d %d\n", what, to->sl, to->grh.traffic_class);
    else
        append("classes", "%s %d no GRH\n", what, to->sl);
}

static void *serve(void *unused) {
    static _Alignas(8) char buffer[sizeof(struct packet) + PART];
    for (;;) {
        struct pollfd all[2 + 64] = { { .fd = in_socket, .events = POLLIN }, { .fd = wake, .events = POLLIN } };
        int count = 2, waits = 0;
        pthread_mutex_lock(&mutex);
        for (struct qp *qp = pairs; qp; qp = qp->next)
            waits |= progress(qp);
        for (int process = 0; process < PROCESSES; process++)
            if (peers[process].first) {
                flush(process);
                if (peers[process].first && count < 66)
                    all[count++] = (struct pollfd){ .fd = peers[process].fd, .events = POLLOUT };
            }
        pthread_mutex_unlock(&mutex);
        poll(all, count, waits ? 1 : -1);
        uint64_t drained;
        if (all[1].revents && read(wake, &drained, sizeof drained) < 0)
            continue;
        ssize_t bytes;
        while ((bytes = recv(in_socket, buffer, sizeof buffer, MSG_DONTWAIT)) >= WORD) {
            struct frame frame;
            if (bytes == 4 * sizeof(uint32_t)) {
                happen((uint32_t *)buffer);
                continue;
            }
            memcpy(&frame, buffer, sizeof frame);
            pthread_mutex_lock(&mutex);
            handle(&frame, buffer + offsetof(struct packet, bytes) - offsetof(struct packet, frame));
            pthread_mutex_unlock(&mutex);
        }
    }
    return unused;
}

static int start(void) {
    late_ms = setting("FAKE_LATE_MS");
    in_order = setting("FAKE_IN_ORDER");
    hold = setting("FAKE_HOLD");
    resolve = setting("FAKE_RESOLVE");
    lid = setting("FAKE_LID") ? setting("FAKE_LID") : 1;
    for (int at = 0; at < DEVICES; at++) {
        uint8_t gid[16];
        const char *shortest = entry("FAKE_DEAF", &devices[at]);
        deaf[at] = shortest ? atoi(shortest) : 0;
        gid_of(&devices[at], gid);
        memcpy(&subnets[at], gid, sizeof subnets[at]);
    }
    char name[4096];
    snprintf(name, sizeof name, "%s/datagrams.%d", getenv("FAKE_ADAPTER"), getpid());
    int counts = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (counts < 0 || ftruncate(counts, DEVICES * sizeof *datagrams) != 0)
        return -1;
    datagrams = mmap(NULL, DEVICES * sizeof *datagrams, PROT_READ | PROT_WRITE, MAP_SHARED, counts, 0);
    close(counts);
    if (datagrams == MAP_FAILED)
        return -1;
    in_socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    for (int process = 0; process < PROCESSES; process++) {
        peers[process].fd = -1;
        peers[process].last = &peers[process].first;
    }
    for (int process = 1; process < PROCESSES && self < 0; process++) {
        struct sockaddr_un name = address_of(process);
        if (bind(in_socket, (struct sockaddr *)&name, sizeof name) == 0)
            self = process;
        else if (errno != EADDRINUSE)
            return -1;
    }
    pthread_t thread;
    return self < 0 || pthread_create(&thread, NULL, serve, NULL) ? -1 : 0;
}

/* Verbs of the function table. */

static int poll_cq(struct ibv_cq *of, int most, struct ibv_wc *into) {
    struct cq *cq = (struct cq *)of;
    int count = 0;
    pthread_mutex_lock(&mutex);
    for (; count < most && cq->first; count++) {
        struct completion *first = cq->first;
        into[count] = first->wc;
        cq->first = first->next;
        if (!cq->first)
            cq->last = &cq->first;
        free(first);
    }
    pthread_mutex_unlock(&mutex);
    return count;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited) {
    (void)solicited;
    pthread_mutex_lock(&mutex);
    ((struct cq *)cq)->armed = 1;
    pthread_mutex_unlock(&mutex);
    return 0;
}

static void expect(struct receives *receives, struct ibv_recv_wr *wr) {
    pthread_mutex_lock(&mutex);
    for (; wr; wr = wr->next) {
        struct receive *receive = malloc(sizeof *receive + wr->num_sge * sizeof *receive->sge);
        receive->next = NULL;
        receive->wr_id = wr->wr_id;
        receive->pieces = wr->num_sge;
        memcpy(receive->sge, wr->sg_list, wr->num_sge * sizeof *receive->sge);
        *receives->last = receive;
        receives->last = &receive->next;
    }
    /* Peers' messages may wait for a receive. */
    for (struct qp *qp = pairs; qp; qp = qp->next)
        progress(qp);
    pthread_mutex_unlock(&mutex);
}

static int is_there(const char *file) {
    char name[4096];
    snprintf(name, sizeof name, "%s/%s", getenv("FAKE_ADAPTER"), file);
    return access(name, F_OK) == 0;
}

/* There are such files for each adapter. */
static int is_told(const char *what, const struct qp *qp) {
    char file[32];
    snprintf(file, sizeof file, "%s.%d", what, number_of(qp));
    return is_there(file);
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    (void)bad;
    expect(&((struct qp *)qp)->receives, wr);
    return 0;
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    (void)bad;
    expect(&((struct srq *)srq)->receives, wr);
    return 0;
}

static int post_send(struct ibv_qp *of, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    struct qp *qp = (struct qp *)of;
    if (of->qp_type == IBV_QPT_RC && is_told("refuse", qp)) {
        *bad = wr;
        return EIO;
    }
    pthread_mutex_lock(&mutex);
    for (; wr; wr = wr->next) {
        struct ibv_sge sge = wr->num_sge ? wr->sg_list[0] : (struct ibv_sge){ 0 };
        struct frame frame = { .kind = REQUEST, .op = wr->opcode, .from = of->qp_num, .to = qp->peer, .length = sge.length,
            .imm = wr->imm_data, .number = ++qp->posted };
        if (of->qp_type == IBV_QPT_UD) {
            frame.kind = DATAGRAM, frame.to = wr->wr.ud.remote_qpn, frame.qkey = wr->wr.ud.remote_qkey;
            frame.dlid = ((struct ah *)wr->wr.ud.ah)->dlid;
            if (qp->mute || is_told("mute", qp)) {
                qp->mute = 1;
                continue;
            }
            datagrams[number_of(qp)] += wr->opcode == IBV_WR_SEND_WITH_IMM;
            frame.dgid = ((struct ah *)wr->wr.ud.ah)->dgid;
            say(frame, (char *)sge.addr);
            if (wr->send_flags & IBV_SEND_SIGNALED)
                complete(of->send_cq, (struct ibv_wc){ .wr_id = wr->wr_id, .qp_num = of->qp_num });
            continue;
        }
        struct sent *sent = calloc(1, sizeof *sent);
        sent->number = frame.number, sent->wr_id = wr->wr_id, sent->sge = sge, sent->op = wr->opcode;
        sent->signalled = wr->send_flags & IBV_SEND_SIGNALED;
        *qp->sent_last = sent;
        qp->sent_last = &sent->next;
        if (of->state != IBV_QPS_RTS) {
            fail(qp);
            continue;
        }
        const char *bytes = NULL;
        switch (wr->opcode) {
        case IBV_WR_ATOMIC_CMP_AND_SWP:
        case IBV_WR_ATOMIC_FETCH_AND_ADD:
            frame.address = wr->wr.atomic.remote_addr, frame.key = wr->wr.atomic.rkey;
            frame.compare_add = wr->wr.atomic.compare_add, frame.swap = wr->wr.atomic.swap;
            break;
        case IBV_WR_RDMA_READ:
            frame.address = wr->wr.rdma.remote_addr, frame.key = wr->wr.rdma.rkey;
            break;
        default:
            frame.address = wr->wr.rdma.remote_addr, frame.key = wr->wr.rdma.rkey;
            bytes = sge.length ? (char *)sge.addr : NULL;
        }
        say(frame, bytes);
    }
    pthread_mutex_unlock(&mutex);
    return 0;
}

/* Exported verbs. */

struct ibv_device **ibv_get_device_list(int *count) {
    int all = text("FAKE_DEVICES") ? setting("FAKE_DEVICES") : 1;
    all = all > DEVICES ? DEVICES : all;
    struct ibv_device **list = calloc(DEVICES + 1, sizeof *list);
    const char *sysfs = text("FAKE_SYSFS");
    for (int at = 0; at < all; at++) {
        struct ibv_device *of = list[at] = &devices[at];
        const char *transport = entry("FAKE_TRANSPORT", of);
        of->node_type = IBV_NODE_CA, of->transport_type = transport ? atoi(transport) : IBV_TRANSPORT_IB;
        snprintf(of->name, sizeof of->name, "fake%d", at);
        snprintf(of->dev_name, sizeof of->dev_name, "uverbs%d", at);
        snprintf(of->ibdev_path, sizeof of->ibdev_path, "%s/fake%d", sysfs ? sysfs : "/sys/class/infiniband", at);
    }
    if (count)
        *count = all;
    return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }
const char *ibv_get_device_name(struct ibv_device *of) { return of->name; }

__be64 ibv_get_device_guid(struct ibv_device *of) {
    return htobe64(0x0200000000000001 + ((uint64_t)setting("FAKE_HOST") << 8) + (of - devices));
}

struct ibv_context *ibv_open_device(struct ibv_device *of) {
    struct context *context = calloc(1, sizeof *context);
    context->public.device = of;
    context->public.async_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    context->last = &context->first;
    context->public.num_comp_vectors = text("FAKE_VECTORS") ? setting("FAKE_VECTORS") : 1;
    context->public.ops.poll_cq = poll_cq;
    context->public.ops.req_notify_cq = req_notify_cq;
    context->public.ops.post_send = post_send;
    context->public.ops.post_recv = post_recv;
    context->public.ops.post_srq_recv = post_srq_recv;
    pthread_mutex_lock(&mutex);
    int failed = self < 0 && start();
    if (!failed) {
        context->next = contexts;
        contexts = context;
    }
    pthread_mutex_unlock(&mutex);
    if (failed) {
        free(context);
        return NULL;
    }
    return &context->public;
}

int ibv_close_device(struct ibv_context *context) {
    pthread_mutex_lock(&mutex);
    struct context **at = &contexts;
    while (&(*at)->public != context)
        at = &(*at)->next;
    *at = (*at)->next;
    pthread_mutex_unlock(&mutex);
    close(context->async_fd);
    free(context);
    return 0;
}

static int most_pairs(const struct ibv_device *of) {
    const char *most = entry("FAKE_PAIRS", of);
    return most ? atoi(most) : 1 << 13;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *into) {
    int srq = lacks(context->device, "srq") ? 0 : 1 << 10;
    *into = (struct ibv_device_attr){ .vendor_id = 0x02c9, .max_qp = most_pairs(context->device), .max_qp_wr = 1 << 14, .max_sge = 16, .max_cq = 1 << 16,
        .max_cqe = 1 << 20, .max_mr = 1 << 20, .max_pd = 1 << 10, .max_qp_rd_atom = 16, .max_qp_init_rd_atom = 16,
        .atomic_cap = lacks(context->device, "atomics") ? IBV_ATOMIC_NONE : IBV_ATOMIC_HCA, .max_srq = srq, .max_srq_wr = 1 << 14, .max_srq_sge = 16, .max_pkeys = 1, .phys_port_cnt = 1 };
    return 0;
}

int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *compat) {
    struct ibv_port_attr *into = (struct ibv_port_attr *)compat;
    (void)context;
    if (port != 1 || silent)
        return EINVAL;
    into->state = IBV_PORT_ACTIVE, into->max_mtu = into->active_mtu = IBV_MTU_4096, into->lid = lid;
    into->gid_tbl_len = 1, into->pkey_tbl_len = 8, into->link_layer = IBV_LINK_LAYER_INFINIBAND;
    into->active_width = 2, into->active_speed = 32;
    return 0;
}

int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey) {
    (void)context, (void)port;
    const char *keys = text("FAKE_PKEYS");
    for (int at = 0; keys && at < index; at++)
        keys = strchr(keys, ',') ? strchr(keys, ',') + 1 : NULL;
    if (!keys && index)
        return EINVAL;
    *pkey = htobe16(keys ? strtoul(keys, NULL, 16) : 0xffff);
    return 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid) {
    (void)port;
    gid_of(context->device, gid->raw);
    return index || silent ? EINVAL : 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
    struct ibv_pd *pd = calloc(1, sizeof *pd);
    pd->context = context;
    return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd) {
    free(pd);
    return 0;
}

/* An adapter without atomics refuses the right to execute them. */
static int refuses(const struct ibv_context *context, int access) {
    return access & IBV_ACCESS_REMOTE_ATOMIC && lacks(context->device, "atomics");
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *start, size_t bytes, int access) {
    if (refuses(pd->context, access)) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    if (is_there("full")) {
        errno = ENOMEM;
        return NULL;
    }
    struct mr *mr = calloc(1, sizeof *mr);
    mr->access = access;
    pthread_mutex_lock(&mutex);
    uint32_t key = ++last_key << 8;
    mr->public = (struct ibv_mr){ .context = pd->context, .pd = pd, .addr = start, .length = bytes, .lkey = key, .rkey = key };
    mr->next = memory;
    memory = mr;
    pthread_mutex_unlock(&mutex);
    return &mr->public;
}

int ibv_dereg_mr(struct ibv_mr *of) {
    pthread_mutex_lock(&mutex);
    /* Writes that were begun are finished first. */
    for (struct qp *qp = pairs; qp; qp = qp->next)
        show_before(qp, NULL);
    struct mr **at = &memory;
    while (*at && &(*at)->public != of)
        at = &(*at)->next;
    if (*at)
        *at = (*at)->next;
    pthread_mutex_unlock(&mutex);
    free(of);
    return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context) {
    struct channel *channel = calloc(1, sizeof *channel);
    channel->public.context = context;
    channel->public.fd = eventfd(0, EFD_CLOEXEC);
    return &channel->public;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel) {
    close(channel->fd);
    free(channel);
    return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *user, struct ibv_comp_channel *channel, int vector) {
    if (vector < 0 || vector >= context->num_comp_vectors) {
        errno = EINVAL;
        return NULL;
    }
    if (channel)
        record("vectors", vector);
    struct cq *cq = calloc(1, sizeof *cq);
    cq->public.context = context, cq->public.channel = channel, cq->public.cq_context = user, cq->public.cqe = entries;
    cq->last = &cq->first;
    if (channel)
        ((struct channel *)channel)->cq = &cq->public;
    return &cq->public;
}

/* Drops the completions of a queue pair, or all. */
static void forget(struct ibv_cq *of, struct ibv_qp *qp) {
    struct cq *cq = (struct cq *)of;
    struct completion **at = &cq->first;
    while (*at)
        if (!qp || (*at)->wc.qp_num == qp->qp_num) {
            struct completion *gone = *at;
            *at = gone->next;
            free(gone);
        } else
            at = &(*at)->next;
    cq->last = at;
}

int ibv_destroy_cq(struct ibv_cq *cq) {
    pthread_mutex_lock(&mutex);
    forget(cq, NULL);
    pthread_mutex_unlock(&mutex);
    free(cq);
    return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **user) {
    uint64_t count;
    if (read(channel->fd, &count, sizeof count) < 0)
        return -1;
    *cq = ((struct channel *)channel)->cq;
    *user = (*cq)->cq_context;
    return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count) { (void)cq, (void)count; }

static void drop_receives(struct receives *receives) {
    while (receives->first) {
        struct receive *gone = receives->first;
        receives->first = gone->next;
        free(gone);
    }
    receives->last = &receives->first;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *wanted) {
    if (lacks(pd->context->device, "srq")) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    struct srq *srq = calloc(1, sizeof *srq);
    srq->public.context = pd->context, srq->public.pd = pd, srq->public.srq_context = wanted->srq_context;
    srq->receives.last = &srq->receives.first;
    return &srq->public;
}

int ibv_destroy_srq(struct ibv_srq *srq) {
    drop_receives(&((struct srq *)srq)->receives);
    free(srq);
    return 0;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *wanted) {
    struct qp *qp = calloc(1, sizeof *qp);
    if (lacks(pd->context->device, wanted->qp_type == IBV_QPT_UD ? "ud" : "rc")) {
        free(qp);
        errno = EOPNOTSUPP;
        return NULL;
    }
    if (wanted->cap.max_inline_data > 512) {
        free(qp);
        errno = EINVAL;
        return NULL;
    }
    pthread_mutex_lock(&mutex);
    int count = 0;
    for (struct qp *each = pairs; each; each = each->next)
        count += each->public.qp_type == IBV_QPT_RC && each->public.context->device == pd->context->device;
    if (wanted->qp_type == IBV_QPT_RC && count >= most_pairs(pd->context->device)) {
        pthread_mutex_unlock(&mutex);
        free(qp);
        errno = ENOMEM;
        return NULL;
    }
    qp->public = (struct ibv_qp){ .context = pd->context, .qp_context = wanted->qp_context, .pd = pd, .send_cq = wanted->send_cq,
        .recv_cq = wanted->recv_cq, .srq = wanted->srq, .qp_num = (uint32_t)self << PAIR_BITS | (last_pair++ & ((1 << PAIR_BITS) - 1)),
        .state = IBV_QPS_RESET, .qp_type = wanted->qp_type };
    qp->mtu = 1024;
    qp->sent_last = &qp->sent;
    qp->in_last = &qp->in;
    qp->receives.last = &qp->receives.first;
    qp->next = pairs;
    pairs = qp;
    pthread_mutex_unlock(&mutex);
    return &qp->public;
}

static void drop_requests(struct qp *qp) {
    show_before(qp, NULL);
    while (qp->in) {
        struct message *gone = qp->in;
        qp->in = gone->next;
        free(gone->bytes);
        free(gone);
    }
    qp->in_last = &qp->in;
}

/* As an adapter that resolves an address which does not answer. */
static void wait_while_held(void) {
    while (is_there("hold")) {
        record("held", lid);
        usleep(1000);
    }
}

int ibv_modify_qp(struct ibv_qp *of, struct ibv_qp_attr *to, int what) {
    struct qp *qp = (struct qp *)of;
    if (what & IBV_QP_ACCESS_FLAGS && refuses(of->context, to->qp_access_flags))
        return EOPNOTSUPP;
    if (what & IBV_QP_AV && hold && to->ah_attr.dlid == hold)
        wait_while_held();
    if (what & IBV_QP_AV)
        record_class("qp", &to->ah_attr);
    pthread_mutex_lock(&mutex);
    if (what & IBV_QP_QKEY)
        qp->qkey = to->qkey;
    if (what & IBV_QP_DEST_QPN)
        qp->peer = to->dest_qp_num;
    if (what & IBV_QP_AV)
        qp->dlid = to->ah_attr.dlid, qp->dgid = to->ah_attr.is_global ? to->ah_attr.grh.dgid.raw[15] : 0;
    if (what & IBV_QP_RQ_PSN)
        qp->psn = to->rq_psn;
    if (what & IBV_QP_PATH_MTU)
        qp->mtu = 128 << to->path_mtu;
    if (what & IBV_QP_STATE) {
        if (to->qp_state == IBV_QPS_ERR || to->qp_state == IBV_QPS_RESET)
            drop_requests(qp);
        if (to->qp_state == IBV_QPS_ERR) {
            fail(qp);
            if (of->srq)
                report((struct context *)of->context,
                    (struct ibv_async_event){ .event_type = IBV_EVENT_QP_LAST_WQE_REACHED, .element.qp = of });
        }
        if (to->qp_state == IBV_QPS_RESET) {
            qp->mute = 0;
            drop_receives(&qp->receives);
            while (qp->sent) {
                struct sent *gone = qp->sent;
                qp->sent = gone->next;
                free(gone);
            }
            qp->sent_last = &qp->sent;
        }
        of->state = to->qp_state;
    }
    pthread_mutex_unlock(&mutex);
    return 0;
}

int ibv_query_qp(struct ibv_qp *of, struct ibv_qp_attr *into, int what, struct ibv_qp_init_attr *made) {
    (void)what, (void)made;
    pthread_mutex_lock(&mutex);
    into->qp_state = of->state;
    into->rq_psn = ((struct qp *)of)->psn & 0xffffff;
    pthread_mutex_unlock(&mutex);
    return 0;
}

int ibv_query_qp_data_in_order(struct ibv_qp *of, enum ibv_wr_opcode op, uint32_t flags) {
    (void)flags;
    int order = setting("FAKE_IN_ORDER");
    return of->state == IBV_QPS_RTS && op == IBV_WR_RDMA_WRITE && (order == 1 || (order == 2 && ((struct qp *)of)->peer == of->qp_num));
}

int ibv_destroy_qp(struct ibv_qp *of) {
    struct qp *qp = (struct qp *)of;
    pthread_mutex_lock(&mutex);
    drop_requests(qp);
    drop_receives(&qp->receives);
    while (qp->sent) {
        struct sent *gone = qp->sent;
        qp->sent = gone->next;
        free(gone);
    }
    struct qp **at = &pairs;
    while (*at != qp)
        at = &(*at)->next;
    *at = qp->next;
    forget(of->send_cq, of);
    forget(of->recv_cq, of);
    /* So do its events. */
    struct context *context = (struct context *)of->context;
    struct event **event = &context->first;
    while (*event)
        if ((*event)->event.element.qp == of) {
            struct event *gone = *event;
            *event = gone->next;
            free(gone);
            uint64_t one;
            if (read(of->context->async_fd, &one, sizeof one) < 0)
                abort();
        } else
            event = &(*event)->next;
    context->last = event;
    pthread_mutex_unlock(&mutex);
    free(qp);
    return 0;
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *to) {
    if (lacks(pd->context->device, "routes")) {
        errno = ETIMEDOUT;
        return NULL;
    }
    if (resolve && to->dlid == resolve)
        wait_while_held();
    struct ah *ah = calloc(1, sizeof *ah);
    ah->public.context = pd->context, ah->public.pd = pd, ah->dlid = to->dlid;
    ah->dgid = to->is_global ? to->grh.dgid.raw[15] : 0;
    record("handles", to->dlid);
    record_class("ah", to);
    return &ah->public;
}

int ibv_destroy_ah(struct ibv_ah *ah) {
    free(ah);
    return 0;
}

int ibv_get_async_event(struct ibv_context *of, struct ibv_async_event *into) {
    struct context *context = (struct context *)of;
    uint64_t one;
    if (read(of->async_fd, &one, sizeof one) < 0)
        return -1;
    pthread_mutex_lock(&mutex);
    struct event *event = context->first;
    *into = event->event;
    context->first = event->next;
    if (!context->first)
        context->last = &context->first;
    pthread_mutex_unlock(&mutex);
    free(event);
    return 0;
}

void ibv_ack_async_event(struct ibv_async_event *event) { (void)event; }
int ibv_fork_init(void) { return 0; }

const char *ibv_wc_status_str(enum ibv_wc_status status) {
    return status == IBV_WC_REM_ACCESS_ERR ? "remote access error" : status == IBV_WC_RETRY_EXC_ERR ? "transport retry counter exceeded"
                                                                                                  : "another status";
}
