#!/usr/bin/env python3
"""Writes jinja-cases.jsonl: snippets of our own, rendered by Python's Jinja2 in transformers' set-up. Only needed to add cases.
usage: make_jinja_cases.py >jinja-cases.jsonl       needs transformers and jinja2 3.1.6"""
import json
from transformers.utils.chat_template_utils import _compile_jinja_template

ctx=dict(bos_token='<s>',n=3,f=2.5,s='Hello Wörld  ',l=[3,1,2],d={'b':1,'a':[1,2,{'x':None}],'C':True},u='ÄÖß straße éà',e='',z=[],html='<a href="x">&\'</a>',
 people=[{'name':'bob','age':3,'tags':['x','y']},{'name':'Al','age':1},{'name':'bob','age':2,'k':{'v':7}}],t='line1\nline2\n\nline4',num='42',neg=-7,big=12345678901234567890,nest=[[1,2],[3,[4]]],nul=None)
S=r'''
{{ 1 + 2 * 3 ** 2 // 4 - 7 % 3 }}|{{ -7 // 2 }}|{{ -7 % 3 }}|{{ 7 / 2 }}|{{ 2 ** -1 }}|{{ 2**3**2 }}
{{ 1 ~ 'a' ~ none ~ true ~ 1.0 ~ [1,'x'] ~ {'a':1} }}
{{ 'a' 'b' }}|{{ "it's" }}|{{ 'q"q' }}|{{ ['a\'b"c', "x'y"] }}
{{ s|upper }}|{{ s|lower }}|{{ s|title }}|{{ u|upper }}|{{ u|lower }}|{{ u|capitalize }}|{{ u|title }}|{{ u.title() }}
{{ s.strip() }}|{{ s.split() }}|{{ s.split('l') }}|{{ s.split('l', 1) }}|{{ s.rsplit('l', 1) }}|{{ 'a,b,,c'.split(',') }}|{{ ' a  b c '.split(None, 1) }}|{{ ' a  b c '.rsplit(None, 1) }}
{{ s[1:4] }}|{{ s[::-1] }}|{{ u[-3:] }}|{{ u[2] }}|{{ l[::2] }}|{{ l[-1] }}|{{ l[5] }}|{{ s[100:] }}|{{ l[:-1] }}|{{ l[10:0:-1] }}
{{ l|sort }}|{{ l|sort(reverse=true) }}|{{ people|sort(attribute='age')|map(attribute='name')|list }}|{{ ['b','A','c']|sort }}|{{ ['b','A','c']|sort(case_sensitive=true) }}
{{ people|groupby('name') }}
{% for g in people|groupby('name') %}{{ g.grouper }}:{{ g.list|length }};{% endfor %}
{% for n, items in people|groupby('name') %}{{ n }}={{ items|map(attribute='age')|sum }} {% endfor %}
{{ d|tojson }}|{{ d|tojson(indent=2) }}|{{ d|tojson(sort_keys=true) }}|{{ u|tojson(ensure_ascii=true) }}|{{ d|tojson(separators=(',',':')) }}|{{ z|tojson(indent=4) }}|{{ nest|tojson(indent=1) }}
{{ d|items|list }}|{{ d.items() }}|{{ d.keys()|list }}|{{ d.values()|list }}|{{ d|dictsort }}|{{ d|dictsort(reverse=true)|list }}|{{ {'x':2,'y':1}|dictsort(by='value') }}
{{ d.get('zz') }}|{{ d.get('zz', 5) }}|{{ d.b }}|{{ d['a'][2].x }}|{{ d.nope }}|{{ d.nope is defined }}|{{ d.items is defined }}
{{ d.nope.more }}
{{ nul.x }}|
{{ nul.x.y }}
{{ undefinedvar }}|{{ undefinedvar|default('x') }}|{{ ''|default('x') }}|{{ ''|default('x', true) }}|{{ none|d('q') }}|{{ undefinedvar|length }}
{{ undefinedvar + 1 }}
{{ undefinedvar() }}
{{ 'a' + 1 }}
{{ [1] + 'a' }}
{{ [1,2] + [3] }}|{{ 'ab' * 3 }}|{{ [1] * 3 }}|{{ (1,2) }}|{{ (1,) }}|{{ () }}
{{ 1 < 2 < 3 }}|{{ 1 < 2 > 5 }}|{{ 1 == 1.0 }}|{{ true == 1 }}|{{ 'a' < 'b' }}|{{ [1,2] < [1,3] }}|{{ none == none }}
{{ 'a' < 1 }}
{{ 3 in l }}|{{ 9 not in l }}|{{ 'b' in d }}|{{ 'ell' in s }}|{{ none in [none] }}
{{ 1 in 'abc' }}
{{ not true or true and false }}|{{ not (1 == 2) }}|{{ 'x' if n > 2 else 'y' }}|{{ 'x' if false }}|{{ n and e or 'z' }}
{{ n is number }}|{{ n is odd }}|{{ n is even }}|{{ n is divisibleby 3 }}|{{ f is float }}|{{ n is integer }}|{{ true is integer }}|{{ true is number }}|{{ true is boolean }}|{{ s is string }}|{{ d is mapping }}|{{ l is iterable }}|{{ l is sequence }}|{{ d is sequence }}|{{ nul is none }}|{{ nul is iterable }}|{{ undefinedvar is iterable }}|{{ n is callable }}|{{ range is callable }}
{{ n is eq 3 }}|{{ n is gt(2) }}|{{ n is in [1,3] }}|{{ 'A' is upper }}|{{ 'a' is lower }}|{{ n is not none }}|{{ n is sameas 3 }}|{{ nul is sameas none }}|{{ 'x' is in d }}
{{ l|first }}|{{ l|last }}|{{ z|first }}|{{ l|join('-') }}|{{ people|join(',', attribute='name') }}|{{ l|length }}|{{ s|length }}|{{ u|length }}|{{ d|count }}|{{ l|max }}|{{ l|min }}|{{ l|sum }}|{{ people|sum(attribute='age') }}|{{ l|reverse|list }}|{{ s|reverse }}
{{ people|map(attribute='tags')|list }}|{{ people|map(attribute='k.v')|list }}|{{ people|map(attribute='tags', default='none')|list }}|{{ ['a','b']|map('upper')|list }}|{{ [1,2]|map('string')|join('+') }}|{{ ['a b']|map('replace','a','c')|list }}
{{ people|selectattr('age','gt',1)|map(attribute='name')|list }}|{{ people|rejectattr('tags')|list|length }}|{{ people|selectattr('tags','defined')|list|length }}|{{ l|select('odd')|list }}|{{ l|reject('odd')|list }}|{{ [0,1,'',2]|select|list }}|{{ l|select('greaterthan', 1)|list }}|{{ l|select('in',[1,2])|list }}
{{ l|unique|list }}|{{ ['a','A','b']|unique|list }}|{{ l|batch(2)|list }}|{{ l|batch(2,'-')|list }}|{{ l|slice(2)|list }}|{{ [1,2,3,4,5,6,7]|slice(3,'x')|list }}
{{ 'foo bar baz'|truncate(9) }}|{{ 'foo bar baz qux'|truncate(9, true) }}|{{ 'foo bar baz qux'|truncate(11, false, '..', 0) }}|{{ t|indent }}|{{ t|indent(2, true) }}|{{ t|indent('>>', first=true, blank=true) }}|{{ 'x y z'|wordcount }}|{{ 'x'|center(7) }}|
{{ 42.55|round }}|{{ 42.55|round(1,'floor') }}|{{ 42.45|round(1) }}|{{ 2.5|round }}|{{ 3|round }}|{{ 7.1|round(0,'ceil') }}|{{ '42'|int }}|{{ 'x'|int }}|{{ 'x'|int(7) }}|{{ '3.7'|int }}|{{ 3.9|int }}|{{ '0x1f'|int(0,16) }}|{{ '2.5'|float }}|{{ 'q'|float }}|{{ -3|abs }}|{{ 3|float }}
{{ html|e }}|{{ html|escape|e }}|{{ (html|safe) + '<b>' }}|{{ html|forceescape }}|{{ '<'|e ~ '<' }}|{{ ('<'|e) + '<' }}
{{ 'a-b'.replace('-', '+') }}|{{ 'aaa'.replace('a','b',2) }}|{{ 'aaa'|replace('a','b',1) }}|{{ 'abc'.find('c') }}|{{ 'abc'.index('b') }}|{{ 'abcabc'.rfind('c') }}|{{ 'abc'.count('b') }}|{{ ''.join(['a','b']) }}|{{ 'xAy'.swapcase() }}|{{ 'ab'.center(6,'*') }}|{{ 'ab'.ljust(4,'.') }}|{{ 'ab'.rjust(4) }}|{{ '-7'.zfill(4) }}
{{ 'abc'.startswith('a') }}|{{ 'abc'.endswith(('c','x')) }}|{{ 'abc'.removeprefix('a') }}|{{ 'abc'.removesuffix('c') }}|{{ 'a=b=c'.partition('=') }}|{{ 'a=b=c'.rpartition('=') }}|{{ 'x'.partition('=') }}|{{ 'abc'.startswith('b', 1) }}
{{ '12'.isdigit() }}|{{ 'a1'.isalnum() }}|{{ 'ab'.isalpha() }}|{{ ' '.isspace() }}|{{ ''.isspace() }}|{{ 'AB'.isupper() }}|{{ 'é'.isalpha() }}|{{ '½'.isnumeric() }}|{{ 'abc'.isascii() }}
{{ t.splitlines() }}|{{ t.splitlines(true) }}|{{ 'xxhixx'.strip('x') }}|{{ 'xyhix'.lstrip('xy') }}|{{ '  a '.rstrip() }}|{{ 'ab\n'.rstrip('\n') }}|{{ '\ufeffa '|trim }}|{{ '\u00a0a\u3000'|trim }}
{{ '%s is %d and %.2f' % ('a', 3, 1.5) }}|{{ '%5s|%-5s|%05d|%x' % ('a','b',42,255) }}|{{ '%(a)s' % {'a': 1} }}|{{ '%%' % () }}|{{ '%r' % ('x',) }}
{{ '{} {} {{}}'.format('a', 2) }}|{{ '{1}{0}'.format('a','b') }}|{{ '{x}'.format(x=5) }}
{{ range(5)|list }}|{{ range(2,10,3)|list }}|{{ range(5,0,-2)|list }}|{{ range(3)|length }}|{{ range(4)[1] }}|{{ 2 in range(3) }}
{% for i in range(3) %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }}{{ ", " if not loop.last }}{% endfor %}
{% for x in l if x > 1 %}{{ loop.index }}:{{ x }} {% else %}none{% endfor %}|{% for x in z %}{% else %}empty{% endfor %}
{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% if x == 2 %}{% break %}{% endif %}{% endfor %}
{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }},{% endfor %}{{ x }}
{% set ns = namespace(x=1, y=[]) %}{% for i in l %}{% set ns.x = ns.x + i %}{% set ns.y = ns.y + [i] %}{% endfor %}{{ ns.x }}{{ ns.y }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}|{% set (c, q) = [3,4] %}{{ c }}{{ q }}|{% set a = b %}{{ a }}
{% set a, b = [1] %}
{% set x %}block {{ n }}{% endset %}{{ x }}|{% set y | upper %}abc{% endset %}{{ y }}
{% macro m(a, b=2, *args) %}x{% endmacro %}
{% macro m(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }}|{{ m(1, 3) }}|{{ m(1, b=5) }}|{{ m(1,2,3,4) }}|{{ m(1, q=9) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m() }}|{{ m(1,2) }}
{% macro m(a) %}[{{ a }}:{{ caller() }}]{% endmacro %}{% call m(1) %}body{{ n }}{% endcall %}
{% macro m() %}{{ caller(7) }}{% endmacro %}{% call(v) m() %}got{{ v }}{% endcall %}
{% macro rec(x) %}{{ x }}{% if x > 0 %}{{ rec(x - 1) }}{% endif %}{% endmacro %}{{ rec(5) }}
{% set g = 5 %}{% macro m() %}{{ g }}{% endmacro %}{% set g = 6 %}{{ m() }}
{% for i in [1,2] %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}
{% if false %}{% macro zz() %}a{% endmacro %}{% endif %}{{ zz is defined }}
{% for x in nest recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}@{{ loop.depth }}{% endif %}{% endfor %}
{% with a=1, b=n %}{{ a }}{{ b }}{% endwith %}{{ a }}|{% filter upper %}abc {{ s }}{% endfilter %}
{{ loop is defined }}|{% for i in [1] %}{% for j in [1,2] %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}
{% for i in [1,2,3] %}{{ loop.cycle('a','b') }}{{ loop.changed(i // 2) }}{% endfor %}
{% set c = cycler('x','y') %}{{ c.next() }}{{ c.next() }}{{ c.current }}|{% set j = joiner('|') %}{{ j() }}a{{ j() }}b
{% raw %}{{ x }} {% if %}{% endraw %}|{% raw -%}  a  {%- endraw %}|
a {#- comment -#} b|{# x #}
  {# y #}
z
a
  {% if true %}
    b
  {%- endif %}
c
a
  {%- if true -%}
    b
  {%+ endif +%}
c
  {{ n }}
  {{- n -}}
  x
{% for i in l %}
  {{ i }}
{% endfor %}
end
{%+ if true %}  x{% endif %}
  {%- set x = 1 %}{{ x }}
	{% if true %}tab{% endif %}
{{ "a\nb\t\x41\u00e9\\\'" }}|{{ 'a\qb' }}|{{ '\101' }}
{{ 1.0 }}|{{ 1e3 }}|{{ 1_000 }}|{{ 0x1F }}|{{ 0b11 }}|{{ 0o17 }}|{{ 1.5e-7 }}|{{ 1e16 }}|{{ 123456789.123 }}|{{ 0.1 + 0.2 }}|{{ 1e22 }}
{{ big }}|{{ big|tojson }}|{{ [1.0, 2.50, -0.0]|tojson }}
{{ {'a': 1, 'b': {'c': 2}}.b.c }}|{{ {1: 'x'}[1] }}|{{ {'a':1,}|length }}|{{ [1,2,]|length }}
{{ d.b.real }}|{{ l.append(4) }}
{{ d.update({'x': 1}) }}
{{ l.index(1) }}|{{ l.count(3) }}|{{ l.copy() }}
{{ "x" is defined and n == 3 }}|{{ n is defined or foo.bar }}
{{ people[0].name.upper()[0:2] ~ '!' }}|{{ people|length * 2 }}|{{ (people|first).name }}|{{ people[0]['tags'][-1] }}|{{ people.0.name }}
{{ l|map('foo')|list }}
{{ l|foo }}
{{ n is foo }}
{% include 'x' %}
{{ 'abc'|attr('upper') is defined }}|{{ d|attr('b') }}
{{ l|string }}|{{ none|string }}|{{ true|string|length }}|{{ s|list }}|{{ d|list }}
{{ -n ** 2 }}|{{ -3|abs }}|{{ (-3)|abs }}|{{ not n in l }}|{{ 2 * -1 }}|{{ +3 }}
{{ 'a' in 'abc' and 'b' not in 'xyz' }}|{{ 1 if 0 else 2 if 0 else 3 }}
{{ raise_exception('boom ' ~ n) }}
{{ nest[1][1][0] }}|{{ nest|sum(start=[]) }}
{{ strftime_now('%Y') is string }}|{{ strftime_now('%Y')|length }}
{{ dict(a=1, b=2) }}|{{ dict([('x', 1)]) }}|{{ dict(d, z=0)|length }}
{{ namespace(a=1).a }}|{% set ns = namespace({'q': 2}) %}{{ ns.q }}{{ ns.zz is defined }}
{% set d.x = 1 %}
{% set ns = namespace() %}{% set ns._x = 1 %}
{{ people|map(attribute='name')|join(', ') }}|{{ people|map(attribute='name')|length }}
{{ people|map(attribute='name')|first }}|{{ (people|map(attribute='name'))[0] }}|{{ people|selectattr('zzz') is iterable }}
{% set it = people|map(attribute='name') %}{{ it|list }}{{ it|list }}{{ 'y' if it else 'n' }}
{{ d.items()|list|first }}|{{ d.keys()|first }}|{{ d.items()|length }}|{{ d.keys()[0] }}
{{ d.keys()|tojson }}
{{ [1,2,3]|last }}|{{ l|map('abs')|last }}
{% for c in 'héy' %}{{ c }}.{% endfor %}|{% for a, b in [[1,2],[3,4]] %}{{ a+b }} {% endfor %}
{% for a, b in [[1,2,3]] %}{% endfor %}
{{ [[1,2],[3]]|map('length')|list }}|{{ [['a',1]]|map('first')|list }}|{{ ['a','b']|map('list')|list }}
{{ 10|string|int + 1 }}|{{ '5' * 3 }}|{{ 7 // 2.0 }}|{{ 7 % 2.5 }}|{{ 2 ** 0.5 }}|{{ 1 / 3 }}
{{ 5 / 0 }}
{{ 5 // 0 }}
{{ 'é'|upper|lower|title }}|{{ 'o\'neil mc-donald'|title }}|{{ "o'neil".title() }}|{{ 'ǆ'|upper }}
{{ n.foo }}|{{ n['foo'] }}|{{ s.foo }}|{{ s['upper']() }}|{{ d['items']() is defined }}
{% if undefinedvar %}a{% elif n == 3 %}b{% else %}c{% endif %}|{% if not undefinedvar %}x{% endif %}
{% if %}
{% for x %}
{{ }}
{{ a b }}
{% endif %}
{% if x %}
{{ 'unterminated }}
{{ (1 + }}
{% block x %}a{% endblock %}
{% unknown %}
{{ x.}}
{{ [1, 2 }}
{{ 1 | }}
{% generation %}a{{ n }}{% endgeneration %}b
{% set x = [] %}{% set _ = x.append(1) %}{{ x }}
{% break %}
{{ "%s" | format("x") }}|{{ "%d-%s" | format(3, "y") }}
{{ s | urlencode }}|{{ 'a b&c' | urlencode }}
{{ 'x' is string is boolean }}
{{ people | tojson | length }}|{{ (people | tojson)[:5] }}
{%- for m in people -%}
  {{- m.name -}}
  {%- if not loop.last %}, {% endif -%}
{%- endfor -%}
{{ [none, true, 1.5, 'x', {'k': [()]}] }}|{{ '\u200b' ~ ['\u200b', '\x07', '\u00ad', '\U0001F600', 'é', '\ue000', '\u0378'] }}
{{ 'ab' < 'b' and [] == [] and {} == {} and () == () and [] != () }}
{{ 'A'.lower() == 'a' }}
{{ 3 is between }}
{{ foo(1)(2) }}
{{ {}['x'] }}|{{ {}.x is undefined }}|{{ [].x }}|{{ ''.x }}
{{ l == [3,1,2] }}|{{ l is eq [3,1,2] }}|{{ d == d }}|{{ people[0] == people[0] }}|{{ people[0] != people[1] }}
{{ [3,1]|min }}|{{ ['b','A']|min }}|{{ people|max(attribute='age') }}
{{ '1,2;3'.split(',')[1].split(';') }}|{{ 'abc'[-1] }}|{{ 'abc'[5] }}|{{ 'abc'[0:99] }}
{%- macro a(x) -%}
    {{- x -}}
{%- endmacro -%}
{{ a('q') }}{{ a(x='r') }}
{% set content = 'x' %}{% for i in [1] %}{% set content = 'y' %}{% endfor %}{{ content }}{% if true %}{% set content = 'z' %}{% endif %}{{ content }}
{{ 'true' if true is true }}|{{ 1 is true }}|{{ false is false }}|{{ none is none }}
'''
lines = S.strip('\n').split('\n')
multi=["a\n  {% if true %}\n    b\n  {%- endif %}\nc","a\n  {%- if true -%}\n    b\n  {%+ endif +%}\nc","  {{ n }}\n  {{- n -}}\n  x\n","{% for i in l %}\n  {{ i }}\n{% endfor %}\nend\n","{# y #}\n  z\n\n","a\r\nb{% if 1 %}\r\nc{% endif %}\r\n","{% set x %}\n  a\n{% endset %}\n[{{ x }}]\n","x\n  {# c #}\n  y {# d #} \n","{%- for m in people -%}\n  {{- m.name -}}\n  {%- if not loop.last %}, {% endif -%}\n{%- endfor -%}\n","  {% raw %}\n {{ a }}\n  {% endraw %}\n  b","{{ n }}\n","{{ n }}\n\n","{% if true -%}\n\n  x\n{%- endif %}\n y","\n\n{%- if true %}\n{%- endif %}\n\n","{% macro a(x) %}\n  {{ x }}\n{% endmacro %}\n{{ a(1) }}|\n","\u00a0 {%- if true %}\u2003{%- endif -%}\u3000x"," {% if true %} {% if true %} \n x {% endif %} \n{% endif %}","{% if true %}\n\t {% if true %}\n x\n  {% endif %}\n{% endif %}\n"]
print(json.dumps({'context': ctx}, ensure_ascii=False))
for t in lines + multi:
    try:
        text = _compile_jinja_template(t).render(messages=[], tools=None, documents=None, add_generation_prompt=False, **ctx)
        print(json.dumps({'template': t, 'text': text}, ensure_ascii=False))
    except Exception as e:
        print(json.dumps({'template': t, 'error': f'{type(e).__name__}: {e}'}, ensure_ascii=False))
