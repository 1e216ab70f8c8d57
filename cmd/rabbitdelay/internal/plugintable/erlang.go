package table

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// names defines variables for the plugin's tables on the node that evaluates the expression.
const names = `
Table = list_to_atom("rabbit_delayed_message" ++ atom_to_list(node())),
Index = list_to_atom(atom_to_list(Table) ++ "_index"),
Tables = case mnesia:system_info(is_running) of yes -> mnesia:system_info(tables); _ -> [] end,
`

// Selection selects the rows of the table to read.
type Selection struct {
	Vhost string
	// Exchanges lists the exchanges whose messages are read. Empty means all exchanges.
	Exchanges []string
	// Margin is how far ahead of the broker's clock a message must be due to be read. Messages that are due sooner are
	// only counted.
	Margin time.Duration
}

// head defines a function that prints a Head with additional fields.
const head = `
B = fun(X) -> base64:encode(iolist_to_binary(X)) end,
Int = fun(I) -> integer_to_list(I) end,
Head = fun(More) ->
  Others = [T || T <- Tables, T =/= Table, T =/= Index, lists:prefix("rabbit_delayed_message", atom_to_list(T)), not lists:suffix("_index", atom_to_list(T))],
  Rows = case lists:member(Table, Tables) of true -> mnesia:table_info(Table, size); false -> -1 end,
  io:put_chars(["{\"node\":\"", B(atom_to_list(node())), "\",\"now\":", Int(erlang:system_time(millisecond)),
    ",\"rows\":", Int(Rows), ",\"elsewhere\":", Int(length(Others)), More, "}\n"])
end,
`

// Look returns the expression that prints only a Head. The Head also says whether the broker has the given queue.
func Look(vhost, queue string) string {
	return names + head + fmt.Sprintf(`Head([",\"has_queue\":", atom_to_list(rabbit_amqqueue:exists(rabbit_misc:r(%s, queue, %s)))]).
`, binary(vhost), binary(queue))
}

// Read returns the expression that prints a Head, the rows ordered by due time, and an End, as one JSON object per
// line. The node buffers some 200 rows in memory at a time.
func Read(s Selection) string {
	list := make([]string, len(s.Exchanges))
	for i, e := range s.Exchanges {
		list[i] = binary(e)
	}
	return names + head + fmt.Sprintf(`
Vhost = %s,
Chosen = [%s],
From = erlang:system_time(millisecond) + %d,
`, binary(s.Vhost), strings.Join(list, ", "), s.Margin.Milliseconds()) + readRows
}

// readRows decodes rows in both formats: a delivery in RabbitMQ 3.10 and a message container in later versions. A row
// that cannot be decoded is printed with the reason.
const readRows = `
Text = fun(T) -> B(io_lib:format("~0P", [T, 9])) end,
Content = fun(M) ->
  case element(1, M) of
    basic_message -> {element(3, M), element(4, M)};
    _ -> {mc:routing_keys(M), mc:protocol_state(mc:convert(mc_amqpl, M))}
  end
end,
Message = fun(D) ->
  {Keys, C0} = Content(case element(1, D) of delivery -> element(5, D); _ -> D end),
  C = rabbit_binary_generator:ensure_content_encoded(C0, rabbit_framing_amqp_0_9_1),
  [",\"keys\":[", lists:join(",", [[$", B(K), $"] || K <- Keys]),
   "],\"properties\":\"", B(element(4, C)), "\",\"body\":\"", B(lists:reverse(element(6, C))), $"]
end,
Row = fun(Due, Name, {delay_entry, _, D, Ref}) ->
  Rest = case catch Message(D) of
    {'EXIT', Why} -> [",\"unreadable\":\"", Text(Why), $"];
    Printed -> Printed
  end,
  iolist_to_binary(["{\"due\":", Int(Due), ",\"exchange\":\"", B(Name), "\",\"ref\":\"", B(term_to_binary(Ref)), $", Rest, "}\n"])
end,
Print = fun([]) -> ok; (Out) -> io:put_chars(lists:reverse(Out)) end,
Walk = fun Walk('$end_of_table', {Out, _, _, Soon, Other}) ->
    Print(Out),
    io:put_chars(["{\"end\":true,\"soon\":", Int(Soon), ",\"other\":", Int(Other), "}\n"]);
  Walk({delay_key, Due, Ex} = Key, {Out, N, Size, Soon, Other}) ->
    {resource, V, exchange, Name} = element(2, Ex),
    Rows = mnesia:dirty_read(Table, Key),
    Mine = V =:= Vhost andalso (Chosen =:= [] orelse lists:member(Name, Chosen)),
    Acc = if
      not Mine -> {Out, N, Size, Soon, Other + length(Rows)};
      Due < From -> {Out, N, Size, Soon + length(Rows), Other};
      true ->
        New = [Row(Due, Name, R) || R <- Rows],
        Bytes = Size + iolist_size(New),
        Count = N + length(New),
        if
          Count >= 200; Bytes > 1000000 -> Print([New | Out]), {[], 0, 0, Soon, Other};
          true -> {[New | Out], Count, Bytes, Soon, Other}
        end
    end,
    Walk(mnesia:dirty_next(Index, Key), Acc)
end,
Head([]),
case lists:member(Table, Tables) of
  false -> ok;
  true -> Walk(mnesia:dirty_first(Index), {[], 0, 0, 0, 0})
end.
`

// Delete returns the expression that deletes exactly these rows and prints how many it deleted. It runs in the plugin's
// own process, so the plugin delivers none of the rows in the meantime.
func Delete(rows []ID) string {
	var list strings.Builder
	for _, r := range rows {
		list.WriteString(r.String())
		list.WriteByte(';')
	}
	return names + `
Lines = binary:split(<<"` + strings.TrimSuffix(list.String(), ";") + `">>, <<";">>, [global]),
` + deleteRows
}

// deleteRows deletes the index entry of a due time together with its last row. On RabbitMQ 3.10 an index entry without
// a row, once it is due, blocks the delivery of all later messages.
const deleteRows = `
Wanted = lists:foldl(fun(L, M) ->
  [D, R] = binary:split(L, <<" ">>),
  Ref = binary_to_term(base64:decode(R)),
  maps:update_with(binary_to_integer(D), fun(Refs) -> [Ref | Refs] end, [Ref], M)
end, #{}, Lines),
Keys = fun Keys(Due, Key) ->
  case mnesia:dirty_next(Index, Key) of
    {delay_key, Due, _} = Next -> [Next | Keys(Due, Next)];
    _ -> []
  end
end,
One = fun(Key, Refs) ->
  {atomic, N} = mnesia:transaction(fun() ->
    Rows = mnesia:read(Table, Key, write),
    Stay = [R || R <- Rows, not lists:member(element(4, R), Refs)],
    case length(Rows) - length(Stay) of
      0 -> 0;
      Gone ->
        mnesia:delete({Table, Key}),
        [mnesia:write(Table, R, write) || R <- Stay],
        case Stay of [] -> mnesia:delete({Index, Key}); _ -> ok end,
        Gone
    end
  end),
  N
end,
Parent = self(),
Tag = make_ref(),
sys:replace_state(rabbit_delayed_message, fun(State) ->
  Parent ! {Tag, lists:sum([One(Key, Refs) || {Due, Refs} <- maps:to_list(Wanted), Key <- Keys(Due, {delay_key, Due, 0})])},
  State
end, infinity),
Count = receive {Tag, Sum} -> Sum after 0 -> 0 end,
io:put_chars(["{\"deleted\":", integer_to_list(Count), "}\n"]).
`

// binary returns an Erlang expression for a binary with any bytes.
func binary(s string) string {
	return `base64:decode(<<"` + base64.StdEncoding.EncodeToString([]byte(s)) + `">>)`
}

// ID identifies a row of a node's table.
type ID struct {
	Due int64  // epoch ms, by the broker's clock
	Ref []byte // an Erlang reference
}

// String formats the ID for ParseID. The result contains no line breaks or semicolons.
func (id ID) String() string {
	return strconv.FormatInt(id.Due, 10) + " " + base64.StdEncoding.EncodeToString(id.Ref)
}

// ParseID parses an ID that String has formatted.
func ParseID(s string) (ID, error) {
	due, ref, ok := strings.Cut(s, " ")
	ms, err := strconv.ParseInt(due, 10, 64)
	if !ok || err != nil {
		return ID{}, fmt.Errorf("row %q: expected a due time in milliseconds and a reference", s)
	}
	raw, err := base64.StdEncoding.DecodeString(ref)
	if err != nil || len(raw) == 0 {
		return ID{}, fmt.Errorf("row %q: the reference is not base64", s)
	}
	return ID{ms, raw}, nil
}
