"""Bytes that are an answer, bytes that are none, and every way to cut them into pieces."""

import unittest

from quorate.http1 import BODY_BYTES_MAX, HEAD_BYTES_MAX, AnswerReader, ProtocolError, Request

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nQuorate-Leader: http://a:1\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\ntrailer: x\r\n\r\n"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN


class Reading(unittest.TestCase):
    def test_an_answer_reads_however_it_is_cut(self):
        for whole in (PLAIN, CHUNKED, CONTINUED):
            for size in range(1, len(whole) + 1):
                reader = AnswerReader()
                for at in range(0, len(whole), size):
                    self.assertIsNone(reader.answer)
                    reader.feed(whole[at : at + size])
                self.assertEqual((reader.answer.status, reader.answer.body, reader.answer.keep), (200, b"hello", True))

    def test_an_answer_that_breaks_off_is_none(self):
        for whole in (PLAIN, CHUNKED):
            for length in range(len(whole)):
                reader = AnswerReader()
                reader.feed(whole[:length])
                with self.assertRaises(ProtocolError):
                    reader.eof()

    def test_without_a_length_the_end_of_the_connection_is_the_end(self):
        reader = AnswerReader()
        reader.feed(b"HTTP/1.0 200 OK\r\n\r\nhel")
        reader.feed(b"lo")
        self.assertIsNone(reader.answer)
        reader.eof()
        self.assertEqual((reader.answer.body, reader.answer.keep), (b"hello", False))

    def test_when_a_connection_may_be_used_again(self):
        for head, keep in (
            (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", True),
            (b"HTTP/1.1 204 No\r\n\r\n", True),
            (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n", False),
            (b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n", False),
            (b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 0\r\n\r\n", True),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nmore", False),
        ):
            reader = AnswerReader()
            reader.feed(head)
            self.assertEqual(reader.answer.keep, keep, head)

    def test_what_is_not_http_is_an_error(self):
        for bad in (
            b"\x16\x03\x01garbage",
            b"SSH-2.0-OpenSSH\r\n",
            b"HTTP/2 200\r\n\r\n",
            b"HTTP/1.1 abc OK\r\n\r\n",
            b"HTTP/1.1 2 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 1e3\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nabcd\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1" * 2000,
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfffffffffff\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (BODY_BYTES_MAX + 1),
            b"HTTP/1.1 200 OK\r\nx: " + b"y" * HEAD_BYTES_MAX,
        ):
            with self.assertRaises(ProtocolError, msg=bad[:60]):
                AnswerReader().feed(bad)

    def test_a_request_is_bytes(self):
        request = Request("POST", "/acquire", b"{}", (("if-match", '"7"'),))
        text = request.encode("a:1").decode()
        self.assertTrue(text.startswith("POST /acquire HTTP/1.1\r\nhost: a:1\r\n"))
        self.assertTrue(text.endswith('if-match: "7"\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}'))


if __name__ == "__main__":
    unittest.main()
