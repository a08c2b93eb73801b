"""A client that repeats a request in forms that the network stack puts together later, after the kernel door has answered it: parts of a packet, and IPv6
headers before TCP's. Each copy must be without effect, whatever its form is.

parts.py ADDRESS INTERFACE LINK-ADDRESS-OF-THE-SERVER
"""
import os
import socket
import struct
import sys

ADDRESS, INTERFACE, TARGET = sys.argv[1], sys.argv[2], bytes.fromhex(sys.argv[3].replace(':', ''))
PORT, PATIENCE, PART = 11211, 30, 0x2000
V6 = ':' in ADDRESS
# linux/tcp.h; values that Python does not name
TCP_REPAIR, TCP_REPAIR_QUEUE, TCP_QUEUE_SEQ, OFF_WITHOUT_PROBE, RECEIVED, SENT = 19, 20, 21, -1, 1, 2
TCP, FRAGMENT, DESTINATION, HOP_BY_HOP = 6, 44, 60, 0
REQUEST, ANSWER = b'get hot\r\n', b'VALUE hot 0 5\r\nvalue\r\nEND\r\n'


def connect():
    connection = socket.create_connection((ADDRESS, PORT), PATIENCE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def ask(connection, request, answer):
    connection.sendall(request)
    got = b''
    while len(got) < len(answer):
        more = connection.recv(len(answer) - len(got))
        if not more:
            sys.exit('the connection has ended after %r' % got)
        got += more
    if got != answer:
        sys.exit('%r has the answer %r' % (request, got))


def hits(control):
    control.sendall(b'stats\r\n')
    got = b''
    while not got.endswith(b'END\r\n'):
        got += control.recv(65536)
    return int(got.split(b'keyway_kernel_tcp_hits ')[1].split()[0])


def numbers(connection):
    """After what the client has sent, and received."""
    connection.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    found = []
    for queue in SENT, RECEIVED:
        connection.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR_QUEUE, queue)
        found.append(struct.unpack('I', connection.getsockopt(socket.IPPROTO_TCP, TCP_QUEUE_SEQ, 4))[0])
    connection.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, OFF_WITHOUT_PROBE)
    return found


def checksum(data):
    words = sum(struct.unpack('!%dH' % ((len(data) + 1) // 2), data + b'\0' * (len(data) % 2)))
    while words > 0xFFFF:
        words = (words & 0xFFFF) + (words >> 16)
    return ~words & 0xFFFF


def segment(connection, seq, ack, data):
    ends = [socket.inet_pton(socket.AF_INET6 if V6 else socket.AF_INET, end[0]) for end in (connection.getsockname(), connection.getpeername())]
    head = struct.pack('!HHIIBBHHH', connection.getsockname()[1], PORT, seq, ack, 0x50, 0x18, 500, 0, 0)
    total = checksum(b''.join(ends) + struct.pack('!II' if V6 else '!HH', len(head + data), TCP) + head + data)
    return ends, head[:16] + struct.pack('!H', total) + head[18:] + data


def packet(ends, kind, fragment, identity, body):
    if V6:
        return b'\x86\xdd' + struct.pack('!IHBB', 6 << 28, len(body), kind, 64) + ends[0] + ends[1] + body
    head = struct.pack('!BBHHHBBH', 0x45, 0, 20 + len(body), identity, fragment, 64, kind, 0) + ends[0] + ends[1]
    return b'\x08\0' + head[:10] + struct.pack('!H', checksum(head)) + head[12:] + body


def in_parts(ends, whole, cuts, before=b''):
    """The packets of a segment, of which a part begins at each of these bytes. `before`: IPv6 headers before the one of the parts, without its kind."""
    identity = int.from_bytes(os.urandom(2), 'big')
    packets = []
    for first, last in zip([0] + cuts, cuts + [len(whole)]):
        more = last < len(whole)
        if V6:
            part = struct.pack('!BBHI', TCP, 0, first | more, identity) + whole[first:last]
            kind = DESTINATION if before else FRAGMENT
            packets.append(packet(ends, kind, 0, 0, (bytes([FRAGMENT]) + before if before else b'') + part))
        else:
            packets.append(packet(ends, TCP, first // 8 | (PART if more else 0), identity, whole[first:last]))
    return packets


# One option that pads (RFC 8200, section 4.2), without the next header's kind.
PADDED, LONGER = b'\0\x01\x04\0\0\0\0', b'\x01\x01\x0c' + b'\0' * 12
FORMS = {
    'parts': lambda ends, whole: in_parts(ends, whole, [24]),
    'parts, the last one first': lambda ends, whole: in_parts(ends, whole, [24])[::-1],
    'a first part that is a piece of the header': lambda ends, whole: in_parts(ends, whole, [8]),
}
if V6:
    FORMS['a part that is all of it'] = lambda ends, whole: in_parts(ends, whole, [])
    FORMS['options for the destination'] = lambda ends, whole: [packet(ends, DESTINATION, 0, 0, bytes([TCP]) + PADDED + whole)]
    FORMS['options for every hop'] = lambda ends, whole: [packet(ends, HOP_BY_HOP, 0, 0, bytes([TCP]) + LONGER + whole)]
    FORMS['several headers'] = lambda ends, whole: [packet(ends, HOP_BY_HOP, 0, 0, bytes([DESTINATION]) + PADDED + bytes([TCP]) + LONGER + whole)]
    FORMS['options, and parts'] = lambda ends, whole: in_parts(ends, whole, [24], PADDED)
else:
    FORMS['a first part of 16 bytes'] = lambda ends, whole: in_parts(ends, whole, [16])

with open('/proc/sys/net/ipv4/tcp_timestamps', 'w') as switch:
    switch.write('0')
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
raw.bind((INTERFACE, 0))
link = TARGET + raw.getsockname()[4]
control = connect()
ask(control, b'set hot 0 0 5\r\nvalue\r\n', b'STORED\r\n')
for name, form in FORMS.items():
    # The request alone, and after the one before it, which the server has executed: then no byte of it need be in the first part.
    for copies in 1, 2:
        connection = connect()
        before = hits(control)
        for _ in range(100000):
            ask(connection, REQUEST, ANSWER)
            if hits(control) > before:
                break
        else:
            sys.exit('the kernel answers nothing')
        seq, ack = numbers(connection)
        # As it was sent: before the answer was acknowledged.
        ends, whole = segment(connection, seq - copies * len(REQUEST) & 0xFFFFFFFF, ack - len(ANSWER) & 0xFFFFFFFF, copies * REQUEST)
        for body in form(ends, whole):
            raw.send(link + body)
        # What was executed twice is answered twice, before these.
        ask(connection, b'set other 0 0 1\r\n1\r\n', b'STORED\r\n')
        for _ in range(20):
            ask(connection, REQUEST, ANSWER)
        connection.close()
    print('tried:', name, flush=True)
