-- Families of schema changes, each in a database of its own: a heading with the name and the product that has them,
-- the statements before the changefeeds begin, a line "then", and those that they follow. One statement a line. "usual"
-- is a table t with three rows, {db} the database, "b> " a second session. A statement that a server refuses is left out.

## rename_chain
usual
then
CREATE TABLE u (id int PRIMARY KEY, z int)
INSERT INTO u VALUES (1,1)
RENAME TABLE t TO tmp, u TO t, tmp TO u
INSERT INTO t VALUES (2,2)
UPDATE u SET b=99 WHERE id=1
RENAME TABLE t TO x1, u TO x2, x1 TO u, x2 TO t
UPDATE t SET b=98 WHERE id=2
INSERT INTO u VALUES (5,5)

## rename_rotate3
usual
CREATE TABLE t2 (id int PRIMARY KEY, q int)
INSERT INTO t2 VALUES (1,2)
CREATE TABLE t3 (id int PRIMARY KEY)
INSERT INTO t3 VALUES (1)
then
INSERT INTO t3 VALUES (7)
RENAME TABLE t TO s, t2 TO t, t3 TO t2, s TO t3
INSERT INTO t VALUES (100, 1)
INSERT INTO t2 VALUES (8)
UPDATE t3 SET a='new'

## rename_away_back
usual
then
RENAME TABLE t TO s
CREATE TABLE t (id int PRIMARY KEY, k text)
INSERT INTO t VALUES (9,'nine')
DROP TABLE t
RENAME TABLE s TO t
UPDATE t SET a='back' WHERE id=2

## rename_db
usual
then
CREATE DATABASE {db}__two
RENAME TABLE t TO {db}__two.t
UPDATE {db}__two.t SET b=5
CREATE TABLE t (id int PRIMARY KEY)
INSERT INTO t VALUES (1)

## add_positions
usual
then
ALTER TABLE t ADD n1 int DEFAULT 3 FIRST, ADD n2 int AFTER id, ADD n3 varchar(4) DEFAULT 'q' AFTER n2
INSERT INTO t (id,n1,n2,n3,a,b,c) VALUES (9,1,2,'r','s',4,NULL)
ALTER TABLE t DROP n2, ADD n4 int FIRST, MODIFY a varchar(20) FIRST
UPDATE t SET n4=7,a='m'

## instant_add_drop
usual
then
ALTER TABLE t ADD n1 int DEFAULT 3 FIRST, ALGORITHM=INSTANT
INSERT INTO t (n1,id,a,b,c) VALUES (8,9,'s',4,NULL)
ALTER TABLE t DROP a, ALGORITHM=INSTANT
UPDATE t SET b=b+1
ALTER TABLE t ADD a int DEFAULT 17 AFTER id, ALGORITHM=INSTANT
UPDATE t SET b=b+1 WHERE id=1
ALTER TABLE t MODIFY c datetime(3) FIRST, ALGORITHM=INSTANT
INSERT INTO t (c,n1,id,a,b) VALUES (NULL,1,10,5,6)

## change_retype_reorder
usual
then
ALTER TABLE t CHANGE a b varchar(30) FIRST, CHANGE b a bigint AFTER c, ADD z int DEFAULT 4 AFTER b
INSERT INTO t (b,z,id,c,a) VALUES ('q',1,50,NULL,7)
UPDATE t SET a=a+1

## swap_retype
CREATE TABLE t (id int PRIMARY KEY, a int, b decimal(6,2))
INSERT INTO t VALUES (1,5,1.5),(2,NULL,-2.25)
then
ALTER TABLE t CHANGE a b bigint, CHANGE b a varchar(5)
UPDATE t SET a='u' WHERE id=1

## drop_add_same
usual
then
ALTER TABLE t DROP a, ADD a int DEFAULT 5
INSERT INTO t (id,a) VALUES (7,1)
ALTER TABLE t DROP COLUMN b, ADD COLUMN b varchar(5) DEFAULT 'bb' FIRST
INSERT INTO t (b,id,c,a) VALUES ('z',8,NULL,2)

## rename_col_reuse
usual
then
ALTER TABLE t RENAME COLUMN a TO d, ADD a int DEFAULT 9
UPDATE t SET a=1 WHERE id=1
ALTER TABLE t RENAME COLUMN d TO a2, RENAME COLUMN a TO d
UPDATE t SET d=2 WHERE id=2

## pk_change
CREATE TABLE t (id int NOT NULL, a varchar(9), b int NOT NULL, PRIMARY KEY (id))
INSERT INTO t VALUES (1,'a',1),(2,'b',2),(3,'c',3)
then
ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (b,id)
UPDATE t SET b=11 WHERE id=1
DELETE FROM t WHERE id=2
ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id)
UPDATE t SET a='pk' WHERE id=1

## pk_drop_readd
CREATE TABLE t (id int NOT NULL, a varchar(9), b int NOT NULL, PRIMARY KEY (id))
INSERT INTO t VALUES (1,'a',1)
then
ALTER TABLE t DROP PRIMARY KEY
INSERT INTO t VALUES (4,'n',1)
ALTER TABLE t ADD PRIMARY KEY (id)
INSERT INTO t VALUES (5,'n',1)

## pk_other_col
CREATE TABLE t (id int NOT NULL, a varchar(9), b int NOT NULL, PRIMARY KEY (id))
INSERT INTO t VALUES (1,'a',1),(2,'b',2)
then
ALTER TABLE t DROP PRIMARY KEY, DROP id, ADD PRIMARY KEY (b)
UPDATE t SET a='z' WHERE b=2
INSERT INTO t VALUES ('q',9)

## pk_retype
usual
then
ALTER TABLE t MODIFY id bigint NOT NULL
INSERT INTO t (id,a) VALUES (5000000000,'big')
UPDATE t SET a='u' WHERE id=1
ALTER TABLE t MODIFY id varchar(20) NOT NULL
UPDATE t SET a='v' WHERE id='2'
INSERT INTO t (id) VALUES ('abc')

## pk_rename
usual
then
ALTER TABLE t RENAME COLUMN id TO key_
UPDATE t SET a='u' WHERE key_=1
DELETE FROM t WHERE key_=2
ALTER TABLE t CHANGE key_ `id 2` bigint NOT NULL
UPDATE t SET b=1

## uk_as_key
CREATE TABLE t (x int NOT NULL, y int NOT NULL, a varchar(5), UNIQUE KEY k (x))
INSERT INTO t VALUES (1,1,'a'),(2,2,'b')
then
UPDATE t SET a='u' WHERE x=1
ALTER TABLE t ADD PRIMARY KEY (y)
UPDATE t SET x=100 WHERE y=1
ALTER TABLE t DROP INDEX k
INSERT INTO t VALUES (3,3,'c')

## uk_nullable_flip
CREATE TABLE t (x int NOT NULL, y int NOT NULL, a varchar(5), UNIQUE KEY k (x))
INSERT INTO t VALUES (1,1,'a'),(2,2,'b')
then
ALTER TABLE t MODIFY x int NULL
INSERT INTO t VALUES (NULL,1,'z')
DELETE FROM t WHERE x IS NULL
ALTER TABLE t MODIFY x int NOT NULL
INSERT INTO t VALUES (3,3,'c')

## part_reorganize
CREATE TABLE p (id int, v varchar(9), PRIMARY KEY (id)) PARTITION BY RANGE (id) (PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN (20), PARTITION m VALUES LESS THAN MAXVALUE)
INSERT INTO p VALUES (1,'a'),(2,'b'),(11,'c'),(25,'d')
then
ALTER TABLE p REORGANIZE PARTITION a, b INTO (PARTITION ab VALUES LESS THAN (20))
INSERT INTO p VALUES (3,'x')
ALTER TABLE p REORGANIZE PARTITION m INTO (PARTITION c VALUES LESS THAN (30), PARTITION m VALUES LESS THAN MAXVALUE)
UPDATE p SET v='u' WHERE id=25

## part_maintenance
CREATE TABLE p (id int, v varchar(9), PRIMARY KEY (id)) PARTITION BY RANGE (id) (PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN (20), PARTITION m VALUES LESS THAN MAXVALUE)
INSERT INTO p VALUES (1,'a'),(2,'b'),(11,'c'),(25,'d')
then
ALTER TABLE p ANALYZE PARTITION a
ALTER TABLE p REBUILD PARTITION a, b
ALTER TABLE p OPTIMIZE PARTITION a
ALTER TABLE p CHECK PARTITION ALL
ALTER TABLE p REPAIR PARTITION a
INSERT INTO p VALUES (4,'x')
ALTER TABLE p REMOVE PARTITIONING
INSERT INTO p VALUES (5,'x')
ALTER TABLE p PARTITION BY HASH(id) PARTITIONS 4
INSERT INTO p VALUES (6,'x')
ALTER TABLE p COALESCE PARTITION 2
INSERT INTO p VALUES (7,'x')
ALTER TABLE p ADD PARTITION PARTITIONS 3
INSERT INTO p VALUES (8,'x')

## part_drop
CREATE TABLE p (id int, v varchar(9), PRIMARY KEY (id)) PARTITION BY RANGE (id) (PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN (20), PARTITION m VALUES LESS THAN MAXVALUE)
INSERT INTO p VALUES (1,'a'),(2,'b'),(11,'c'),(25,'d')
then
ALTER TABLE p DROP PARTITION a
INSERT INTO p VALUES (4,'x')

## part_trunc
CREATE TABLE p (id int, v varchar(9), PRIMARY KEY (id)) PARTITION BY RANGE (id) (PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN (20), PARTITION m VALUES LESS THAN MAXVALUE)
INSERT INTO p VALUES (1,'a'),(2,'b'),(11,'c'),(25,'d')
then
ALTER TABLE p TRUNCATE PARTITION a, b
INSERT INTO p VALUES (4,'x')

## part_trunc_all
CREATE TABLE p (id int, v varchar(9), PRIMARY KEY (id)) PARTITION BY RANGE (id) (PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN (20), PARTITION m VALUES LESS THAN MAXVALUE)
INSERT INTO p VALUES (1,'a'),(2,'b'),(11,'c'),(25,'d')
then
ALTER TABLE p TRUNCATE PARTITION ALL
INSERT INTO p VALUES (4,'x')

## part_exchange
CREATE TABLE p (id int, v varchar(9), PRIMARY KEY (id)) PARTITION BY RANGE (id) (PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN (20), PARTITION m VALUES LESS THAN MAXVALUE)
INSERT INTO p VALUES (1,'a'),(2,'b'),(11,'c'),(25,'d')
CREATE TABLE s (id int PRIMARY KEY, v varchar(9))
INSERT INTO s VALUES (9,'s')
then
ALTER TABLE p EXCHANGE PARTITION a WITH TABLE s
INSERT INTO p VALUES (4,'x')
INSERT INTO s VALUES (5,'x')

## part_alter_cols
CREATE TABLE p (id int, v varchar(9), PRIMARY KEY (id)) PARTITION BY RANGE (id) (PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN (20), PARTITION m VALUES LESS THAN MAXVALUE)
INSERT INTO p VALUES (1,'a'),(2,'b'),(11,'c'),(25,'d')
then
ALTER TABLE p ADD w int DEFAULT 4 PARTITION BY KEY(id) PARTITIONS 2
INSERT INTO p VALUES (4,'x',1)
ALTER TABLE p MODIFY v varchar(20) AFTER w REMOVE PARTITIONING
INSERT INTO p VALUES (5,9,'y')

## gencol
CREATE TABLE t (id int PRIMARY KEY, a int, g int AS (a+1) STORED, v varchar(9) AS (concat('v',a)) VIRTUAL)
INSERT INTO t (id,a) VALUES (1,1),(2,NULL)
then
UPDATE t SET a=7 WHERE id=1
ALTER TABLE t ADD h int AS (a*10) VIRTUAL
INSERT INTO t (id,a) VALUES (9,9)
ALTER TABLE t DROP g
INSERT INTO t (id,a) VALUES (10,9)

## gencol_v2s
CREATE TABLE t (id int PRIMARY KEY, a int, g int AS (a+1) STORED, v varchar(9) AS (concat('v',a)) VIRTUAL)
INSERT INTO t (id,a) VALUES (1,1),(2,NULL)
then
ALTER TABLE t MODIFY v varchar(9) AS (concat('v',a)) STORED
INSERT INTO t (id,a) VALUES (9,9)
ALTER TABLE t MODIFY g int
UPDATE t SET g=5 WHERE id=1

## func_index mysql
usual
then
ALTER TABLE t ADD INDEX f ((lower(a)))
INSERT INTO t (id,a) VALUES (9,'A')
ALTER TABLE t ADD INDEX f2 ((b+1)), ADD x int DEFAULT 8
INSERT INTO t (id,a,b) VALUES (10,'A',1)
ALTER TABLE t DROP INDEX f
UPDATE t SET b=3

## func_unique_key mysql
CREATE TABLE t (id int NOT NULL, a varchar(9) NOT NULL, UNIQUE KEY u ((upper(a))), UNIQUE KEY w (id))
INSERT INTO t VALUES (1,'a')
then
INSERT INTO t VALUES (2,'b')
UPDATE t SET a='z' WHERE id=1

## gipk mysql
usual
then
SET sql_generate_invisible_primary_key=1
CREATE TABLE g (a int)
INSERT INTO g VALUES (1),(1)
UPDATE g SET a=2 LIMIT 1
ALTER TABLE g ADD b int DEFAULT 3
INSERT INTO g VALUES (5,6)
ALTER TABLE g ALTER my_row_id SET VISIBLE
INSERT INTO g VALUES (77,1,1)

## invisible
usual
then
ALTER TABLE t ADD inv int INVISIBLE DEFAULT 5
INSERT INTO t (id,a) VALUES (9,'A')
ALTER TABLE t MODIFY b int INVISIBLE
INSERT INTO t (id,a,b) VALUES (10,'A',5)
ALTER TABLE t MODIFY inv int DEFAULT 6
INSERT INTO t (id,a,b) VALUES (11,'A',5)

## fk_cascade
CREATE TABLE par (id int PRIMARY KEY)
CREATE TABLE chi (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES par(id))
INSERT INTO par VALUES (1),(2)
INSERT INTO chi VALUES (1,2)
then
DELETE FROM par WHERE id=1
INSERT INTO par VALUES (20)
INSERT INTO chi VALUES (50,20)
ALTER TABLE par ADD q int DEFAULT 5
UPDATE chi SET p=20

## triggers
usual
CREATE TABLE au (n int AUTO_INCREMENT PRIMARY KEY, w text)
CREATE TRIGGER g1 AFTER INSERT ON t FOR EACH ROW INSERT INTO au (w) VALUES (concat('i',NEW.id))
CREATE TRIGGER g2 AFTER DELETE ON t FOR EACH ROW INSERT INTO au (w) VALUES (concat('d',OLD.id))
CREATE TRIGGER g3 BEFORE UPDATE ON t FOR EACH ROW SET NEW.a = 'trig'
then
INSERT INTO t VALUES (9,'q',1,NULL)
UPDATE t SET b=2 WHERE id=9
DELETE FROM t WHERE id=1

## ctas
usual
then
CREATE TABLE n (PRIMARY KEY (id)) AS SELECT id, a, b*2 AS bb FROM t
INSERT INTO n VALUES (7,'q',8)
CREATE TABLE m (id int PRIMARY KEY, extra int DEFAULT 4) SELECT id, a FROM t
UPDATE m SET extra=9 WHERE id=1
CREATE TABLE IF NOT EXISTS m AS SELECT 5 AS id

## ctas_replace mariadb
usual
CREATE TABLE t2 (id int PRIMARY KEY)
INSERT INTO t2 VALUES (30),(31)
CREATE TABLE t3 LIKE t
INSERT INTO t3 SELECT * FROM t
then
CREATE OR REPLACE TABLE t (PRIMARY KEY (id)) AS SELECT id, 1 AS one FROM t2
INSERT INTO t VALUES (40,2)
CREATE OR REPLACE TABLE t2 LIKE t
INSERT INTO t2 VALUES (1,1)
CREATE OR REPLACE TABLE t2 (id int PRIMARY KEY, q text) REPLACE SELECT id, a AS q FROM t3

## like
usual
then
CREATE TABLE n LIKE t
INSERT INTO n SELECT * FROM t
CREATE TABLE `we``ird` (LIKE t)
INSERT INTO `we``ird` VALUES (1,'a',2,NULL)
ALTER TABLE n ADD q int DEFAULT 1
CREATE TABLE n2 LIKE n
INSERT INTO n2 (id) VALUES (3)

## temp_shadow
usual
then
CREATE TEMPORARY TABLE t (id int PRIMARY KEY, zz int)
INSERT INTO t VALUES (1,1)
ALTER TABLE t ADD yy int
TRUNCATE TABLE t
INSERT INTO t VALUES (1,1,1)
DROP TABLE t
INSERT INTO t VALUES (70,'after',1,NULL)
CREATE TEMPORARY TABLE zz LIKE {db}.t
INSERT INTO zz SELECT * FROM t
DROP TEMPORARY TABLE zz
UPDATE t SET b=1

## temp_create_like
usual
then
CREATE TEMPORARY TABLE tt (id int PRIMARY KEY, k int)
INSERT INTO tt VALUES (1,2)
CREATE TABLE real_ LIKE tt
INSERT INTO real_ SELECT * FROM tt
CREATE TABLE real2 (PRIMARY KEY (id)) SELECT * FROM tt

## exec_comments
usual
then
/*!50000 ALTER TABLE t ADD x1 int DEFAULT 1 */
ALTER TABLE t /*!99999 ADD never int, */ ADD x2 int DEFAULT 2
ALTER /*!40000 TABLE */ t /*!50100 ADD COLUMN x3 int DEFAULT 3 */
INSERT INTO t (id) VALUES (60)
/*! RENAME TABLE t TO t_r */
UPDATE t_r SET b=4

## exec_comments_m mariadb
usual
then
/*M! ALTER TABLE t ADD x1 int DEFAULT 1 */
ALTER TABLE t /*M!999999 ADD never int, */ ADD x2 int DEFAULT 2
ALTER TABLE t /*M!100100 ADD COLUMN x3 int DEFAULT 3 */
ALTER TABLE t /*!50701 ADD COLUMN x4 int DEFAULT 3 */ /*M!50701 ADD COLUMN x5 int DEFAULT 3 */
ALTER TABLE t /*!80000 ADD COLUMN x6 int DEFAULT 3 */
ALTER TABLE t /*!100200 ADD COLUMN x7 int DEFAULT 3 */
INSERT INTO t (id) VALUES (60)

## exec_comments_my mysql
usual
then
ALTER TABLE t /*!50701 ADD COLUMN x4 int DEFAULT 3 */
ALTER TABLE t /*!80000 ADD COLUMN x6 int DEFAULT 3 */
ALTER TABLE t ADD y int /*!80023 INVISIBLE */ DEFAULT 4
ALTER TABLE t /*!100200 ADD COLUMN x7 int DEFAULT 3, */ ADD z int
INSERT INTO t (id) VALUES (60)
ALTER TABLE t /*M! ADD x8 int, */ ADD zz int DEFAULT 2
ALTER TABLE t ADD q1 int DEFAULT 7 /*T![auto_rand] AUTO_RANDOM */

## ansi_quotes
usual
then
SET sql_mode='ANSI_QUOTES'
ALTER TABLE "t" ADD "new col" int DEFAULT 5, CHANGE "a" "A b" varchar(20)
RENAME TABLE "t" TO "t ""q"""
UPDATE "t ""q""" SET b=3
CREATE TABLE "o" ("id" int PRIMARY KEY, "x" varchar(9) DEFAULT 'it''s')
INSERT INTO "o" VALUES (1,DEFAULT)

## names_mb
CREATE TABLE `täble` (id int PRIMARY KEY, `日本` varchar(9))
INSERT INTO `täble` VALUES (1,'é')
then
ALTER TABLE `täble` ADD `ñ` int DEFAULT 4, RENAME COLUMN `日本` TO `中国`
RENAME TABLE `täble` TO `表`
UPDATE `表` SET `中国`='x'
CREATE TABLE `a.b` (id int PRIMARY KEY)
INSERT INTO `a.b` VALUES (1)
ALTER TABLE `a.b` ADD `c.d` int DEFAULT 7
CREATE TABLE `sp ace` (`id` int PRIMARY KEY)
INSERT INTO `sp ace` VALUES (4)

## create_replace_atomic mariadb
usual
CREATE TABLE s (id int PRIMARY KEY, k int)
then
CREATE OR REPLACE TABLE t (id int PRIMARY KEY, n text)
INSERT INTO t VALUES (1,'n')
CREATE OR REPLACE TABLE t LIKE s
INSERT INTO t VALUES (2,3)
CREATE OR REPLACE TABLE t (id int PRIMARY KEY, n int DEFAULT 5)

## drop_db
usual
then
CREATE DATABASE {db}__x
CREATE TABLE {db}__x.a (id int PRIMARY KEY)
INSERT INTO {db}__x.a VALUES (1)
DROP DATABASE {db}__x
CREATE DATABASE {db}__x
CREATE TABLE {db}__x.a (id int PRIMARY KEY, z int DEFAULT 3)
INSERT INTO {db}__x.a VALUES (7,8)

## alter_db
usual
then
ALTER DATABASE {db} CHARACTER SET latin1
CREATE TABLE n (id int PRIMARY KEY, a varchar(9))
INSERT INTO n VALUES (1,'é')
ALTER TABLE t ADD x varchar(9) DEFAULT 'é'
INSERT INTO t (id,x) VALUES (77,'ü')
ALTER DATABASE CHARACTER SET ucs2
CREATE TABLE n2 (id int PRIMARY KEY, a varchar(9))
INSERT INTO n2 VALUES (1,'é')
CREATE TABLE n3 (id int PRIMARY KEY, a varchar(9)) CHARACTER SET DEFAULT
INSERT INTO n3 VALUES (1,'é')
ALTER TABLE t CONVERT TO CHARACTER SET DEFAULT
INSERT INTO t (id,x) VALUES (78,'ü')

## charsets
usual
then
ALTER TABLE t CONVERT TO CHARACTER SET latin1
INSERT INTO t (id,a) VALUES (50,'é')
ALTER TABLE t DEFAULT CHARACTER SET ucs2, ADD n varchar(9) DEFAULT 'ß'
INSERT INTO t (id,n) VALUES (51,'€')
ALTER TABLE t MODIFY a varchar(20) CHARACTER SET utf8mb4
INSERT INTO t (id,a) VALUES (52,'日')
ALTER TABLE t MODIFY a varchar(20)
INSERT INTO t (id,a) VALUES (53,'é')
ALTER TABLE t MODIFY a varchar(20) CHARACTER SET binary
INSERT INTO t (id,a) VALUES (54,'é')

## statement_dml
usual
then
SET SESSION binlog_format=STATEMENT
UPDATE t SET b=500 WHERE id=1
SET SESSION binlog_format=ROW
UPDATE t SET b=501 WHERE id=2

## mixed_dml
usual
then
SET SESSION binlog_format=MIXED
INSERT INTO t VALUES (400,left(uuid(),9),1,NULL)
UPDATE t SET b=500 WHERE id=1

## xa_ddl
usual
CREATE TABLE u (id int PRIMARY KEY)
INSERT INTO u VALUES (1)
then
XA START 'hx1'
UPDATE t SET b=77 WHERE id=1
XA END 'hx1'
XA PREPARE 'hx1'
b> ALTER TABLE u ADD z int DEFAULT 5
b> INSERT INTO u VALUES (4,5)
XA COMMIT 'hx1'
XA START 'hx2'
UPDATE t SET b=78 WHERE id=2
XA END 'hx2'
XA COMMIT 'hx2' ONE PHASE
XA START 'hx3'
UPDATE t SET b=79 WHERE id=2
XA END 'hx3'
XA PREPARE 'hx3'
XA ROLLBACK 'hx3'

## savepoints
usual
then
BEGIN
INSERT INTO t VALUES (20,'a',1,NULL)
SAVEPOINT s1
INSERT INTO t VALUES (21,'a',1,NULL)
ROLLBACK TO s1
INSERT INTO t VALUES (22,'a',1,NULL)
RELEASE SAVEPOINT s1
COMMIT
BEGIN
DELETE FROM t
ROLLBACK

## ddl_in_trx
usual
then
BEGIN
INSERT INTO t VALUES (30,'a',1,NULL)
ALTER TABLE t ADD q int DEFAULT 3
INSERT INTO t VALUES (31,'a',1,NULL,4)
CREATE TABLE u (id int PRIMARY KEY)
INSERT INTO u VALUES (1)
ROLLBACK

## truncate_rows
usual
then
TRUNCATE t
INSERT INTO t VALUES (1,'n',1,NULL)
TRUNCATE TABLE t
INSERT INTO t VALUES (2,'n',1,NULL)
ALTER TABLE t ADD z int DEFAULT 1
TRUNCATE TABLE t

## auto_inc
usual
then
ALTER TABLE t ADD n int NOT NULL AUTO_INCREMENT UNIQUE
INSERT INTO t (id) VALUES (60)

## auto_inc2
CREATE TABLE e (id int AUTO_INCREMENT PRIMARY KEY, a int)
then
INSERT INTO e (a) VALUES (1),(2)
ALTER TABLE e AUTO_INCREMENT=100
INSERT INTO e (a) VALUES (3)
ALTER TABLE e MODIFY id bigint AUTO_INCREMENT
INSERT INTO e (a) VALUES (4)

## expr_default
usual
then
ALTER TABLE t ADD x int DEFAULT (1+2)
ALTER TABLE t ADD y varchar(9) DEFAULT (concat('a','b'))
ALTER TABLE t ADD d date DEFAULT (current_date)
INSERT INTO t (id) VALUES (60)

## expr_default_col
usual
then
ALTER TABLE t ADD x int DEFAULT (b+1)
INSERT INTO t (id,b) VALUES (60,5)

## now_default
usual
then
SET time_zone='-07:00'
SET timestamp=1700000000
ALTER TABLE t ADD x timestamp DEFAULT now(), ADD y datetime DEFAULT now(), ADD z timestamp(3) NULL DEFAULT CURRENT_TIMESTAMP(3)
SET timestamp=DEFAULT
INSERT INTO t (id,x,y,z) VALUES (60,'2024-01-01','2024-01-01','2024-01-01')

## conv_types
usual
then
SET sql_mode=''
SET time_zone='+05:00'
ALTER TABLE t MODIFY c datetime
ALTER TABLE t MODIFY b varchar(3)
ALTER TABLE t MODIFY a char(1)
INSERT INTO t VALUES (60,'z','9','2024-05-05')
ALTER TABLE t MODIFY c timestamp NULL
INSERT INTO t VALUES (61,'z','9','2024-05-05')

## narrow_lax
CREATE TABLE t (id int PRIMARY KEY, b int)
INSERT INTO t VALUES (1,1000),(2,-1000),(3,NULL),(4,50)
then
SET sql_mode=''
ALTER TABLE t MODIFY b tinyint
INSERT INTO t VALUES (60,1000)
ALTER TABLE t MODIFY b tinyint unsigned NOT NULL
INSERT INTO t VALUES (61,200)

## zero_dates
SET sql_mode=''
CREATE TABLE t (id int PRIMARY KEY, d date, e datetime, f timestamp NULL)
INSERT INTO t VALUES (1,'0000-00-00','0000-00-00','0000-00-00'),(2,NULL,NULL,NULL),(3,'2024-02-03','2024-02-03 04:05:06','2024-02-03 04:05:06')
then
SET sql_mode=''
INSERT INTO t VALUES (10,'0000-00-00','0000-00-00 00:00:00','0000-00-00 00:00:00')
ALTER TABLE t ADD n int DEFAULT 4
INSERT INTO t VALUES (11,'2024-00-00','2024-01-00 00:00:00',NULL,1)
ALTER TABLE t ADD d2 date NOT NULL, ADD d3 datetime(3) NOT NULL, ADD d4 timestamp NOT NULL DEFAULT '0000-00-00 00:00:00'
UPDATE t SET n=9 WHERE id=1
ALTER TABLE t MODIFY d date NOT NULL
ALTER TABLE t MODIFY e datetime(3)
INSERT INTO t (id,d) VALUES (14,'2024-01-01')

## zero_dates2
SET sql_mode=''
CREATE TABLE t (id int PRIMARY KEY, e datetime(3))
INSERT INTO t VALUES (1,'0000-00-00'),(2,'2024-00-10 10:11:12.567'),(3,'2024-02-03 04:05:06.789')
then
SET sql_mode=''
ALTER TABLE t MODIFY e datetime
INSERT INTO t VALUES (14,'2024-01-01')

## dates_text
CREATE TABLE t (id int PRIMARY KEY, d date NOT NULL, e datetime(3) NOT NULL, f float, g double)
INSERT INTO t VALUES (1,'2024-02-03','2024-02-03 04:05:06.789',1.25,1e20),(2,'1000-01-01','1000-01-01',1e-10,3)
then
ALTER TABLE t MODIFY d varchar(30), MODIFY e varchar(30), MODIFY f varchar(30)
INSERT INTO t VALUES (9,'x','y','z',1.5)

## enum_members
CREATE TABLE t (id int PRIMARY KEY, e enum('a','b','c'), s set('x','y'))
INSERT INTO t VALUES (1,'a','x'),(2,'b','x,y'),(3,'c',''),(4,NULL,NULL)
then
ALTER TABLE t MODIFY e enum('a','b','c','d')
INSERT INTO t VALUES (9,'d','y')
ALTER TABLE t MODIFY e enum('d','c','b','a')
INSERT INTO t VALUES (10,'d','x')
ALTER TABLE t MODIFY s set('y','x','z')
INSERT INTO t VALUES (11,'a','x,z')
SET sql_mode=''
ALTER TABLE t MODIFY e enum('d','c')
INSERT INTO t VALUES (12,'c','y,x')

## geo
CREATE TABLE t (id int PRIMARY KEY, g geometry, p point)
INSERT INTO t VALUES (1,ST_GeomFromText('POINT(1 2)'),ST_GeomFromText('POINT(5 6)'))
then
INSERT INTO t VALUES (2,ST_GeomFromText('LINESTRING(0 0,1 1)'),NULL)
ALTER TABLE t ADD q point
INSERT INTO t VALUES (3,ST_GeomFromText('POINT(1 1)'),ST_GeomFromText('POINT(2 2)'),ST_GeomFromText('POINT(3 3)'))
ALTER TABLE t MODIFY p geometry
INSERT INTO t VALUES (4,NULL,ST_GeomFromText('LINESTRING(0 0,1 1)'),NULL)
ALTER TABLE t MODIFY g longblob
ALTER TABLE t DROP q

## json_partial mysql
CREATE TABLE t (id int PRIMARY KEY, j json, k json)
INSERT INTO t VALUES (1,'{"a": 1, "b": [1,2,{"x": "yyyyyyyyyyyyyyyyyyyyyyyy"}]}','[1,2,3]'),(2,'{"a": 1}','[1,2,3]')
then
SET SESSION binlog_row_value_options='PARTIAL_JSON'
UPDATE t SET j=json_set(j,'$.a',5) WHERE id=1
UPDATE t SET j=json_remove(j,'$.b'), k=json_replace(k,'$[0]',9)
ALTER TABLE t ADD n int DEFAULT 1
UPDATE t SET j=json_set(j,'$.z',json_array(1,2,3))
ALTER TABLE t MODIFY k json FIRST
UPDATE t SET k=json_array_append(k,'$',8)

## compressed_cols mariadb
CREATE TABLE t (id int PRIMARY KEY, a varchar(1000) COMPRESSED, b blob COMPRESSED)
INSERT INTO t VALUES (1,repeat('a',900),repeat('q',900))
then
INSERT INTO t VALUES (2,repeat('b',500),repeat('c',500))
ALTER TABLE t MODIFY a varchar(1000)
INSERT INTO t VALUES (3,repeat('b',500),repeat('c',500))
ALTER TABLE t MODIFY b blob
UPDATE t SET b='x' WHERE id=1
ALTER TABLE t ADD d text COMPRESSED DEFAULT 'dd'
INSERT INTO t VALUES (4,'a','b',repeat('z',2000))

## sequences mariadb
usual
then
CREATE SEQUENCE s START 5
CREATE TABLE n (id int DEFAULT (NEXT VALUE FOR s) PRIMARY KEY, a int)
INSERT INTO n (a) VALUES (1),(2)
SELECT NEXT VALUE FOR s
ALTER SEQUENCE s RESTART 50
INSERT INTO n (a) VALUES (1),(2)
RENAME TABLE s TO s9
DROP SEQUENCE s9

## sysver mariadb
usual
then
CREATE TABLE n (id int PRIMARY KEY, a int) WITH SYSTEM VERSIONING
INSERT INTO n VALUES (1,1)
UPDATE n SET a=2
ALTER TABLE t ADD SYSTEM VERSIONING
UPDATE t SET b=4

## app_period mariadb
usual
then
CREATE TABLE n (id int, s date, e date, PERIOD FOR p(s,e), PRIMARY KEY (id, p WITHOUT OVERLAPS))
INSERT INTO n VALUES (1,'2024-01-01','2024-06-01')
DELETE FROM n FOR PORTION OF p FROM '2024-02-01' TO '2024-03-01'
CREATE TABLE m (id int PRIMARY KEY, s date, e date, PERIOD FOR p(s,e))
INSERT INTO m VALUES (1,'2024-01-01','2024-06-01')

## app_period_setup mariadb
CREATE TABLE n (id int, v int, s date, e date, PERIOD FOR p(s,e), PRIMARY KEY (id, p WITHOUT OVERLAPS))
INSERT INTO n VALUES (1,5,'2024-01-01','2024-06-01')
then
INSERT INTO n VALUES (2,7,'2024-01-01','2024-06-01')
DELETE FROM n FOR PORTION OF p FROM '2024-02-01' TO '2024-03-01' WHERE id=1
UPDATE n FOR PORTION OF p FROM '2024-04-01' TO '2024-05-01' SET v=9 WHERE id=1

## oracle_mode mariadb
usual
then
SET sql_mode='ORACLE'
ALTER TABLE t ADD n NUMBER(5), ADD v VARCHAR2(9) DEFAULT 'v'
INSERT INTO t (id,n,v) VALUES (60,1.5,'q')
ALTER TABLE t MODIFY v VARCHAR2(20)
CREATE TABLE o (id NUMBER(9) PRIMARY KEY, r RAW(5), c CLOB, b BLOB, d DATE)
INSERT INTO o VALUES (1,'ab','c','b','2024-01-01 10:11:12')
ALTER TABLE o ADD d2 DATE DEFAULT '2024-01-01 01:02:03'
INSERT INTO o (id) VALUES (2)
CREATE TABLE o2 (id NUMBER PRIMARY KEY, n number)
INSERT INTO o2 VALUES (1.5,2.5)

## set_statement mariadb
usual
then
SET STATEMENT max_statement_time=100 FOR TRUNCATE TABLE t
INSERT INTO t VALUES (1,'n',1,NULL)
SET STATEMENT lock_wait_timeout=10, sql_mode='' FOR ALTER TABLE t MODIFY a char(1)
SET STATEMENT max_statement_time=100 FOR RENAME TABLE t TO t9
INSERT INTO t9 VALUES (2,'q',1,NULL)
SET STATEMENT binlog_format=STATEMENT FOR UPDATE t9 SET b=5

## case_words
usual
then
alter table t add column N int default 5 first
ALTER TABLE `t` ADD x int
aLtEr TaBlE t cHaNgE a A varchar(30) aFtEr b
INSERT INTO t (id,N) VALUES (70,1)
alter table t drop B
update t set N=4

## ptosc
usual
then
CREATE TABLE `_t_new` LIKE t
ALTER TABLE `_t_new` ADD z int DEFAULT 4, MODIFY b bigint
CREATE TRIGGER pti AFTER INSERT ON t FOR EACH ROW REPLACE INTO _t_new (id,a,b,c) VALUES (NEW.id,NEW.a,NEW.b,NEW.c)
INSERT LOW_PRIORITY IGNORE INTO _t_new (id,a,b,c) SELECT id,a,b,c FROM t LOCK IN SHARE MODE
INSERT INTO t VALUES (90,'n',5,NULL)
ANALYZE TABLE _t_new
RENAME TABLE t TO `_t_old`, `_t_new` TO t
DROP TABLE IF EXISTS `_t_old`
UPDATE t SET z=5 WHERE id=1

## ptosc_dropswap
usual
then
CREATE TABLE `_t_new` LIKE t
ALTER TABLE `_t_new` ADD z int DEFAULT 4
INSERT LOW_PRIORITY IGNORE INTO _t_new (id,a,b,c) SELECT id,a,b,c FROM t
SET foreign_key_checks=0
DROP TABLE IF EXISTS t
RENAME TABLE _t_new TO t
UPDATE t SET z=5 WHERE id=1

## ghost
usual
then
CREATE TABLE _t_gho LIKE t
ALTER TABLE _t_gho ADD z int DEFAULT 4, CHANGE a aa varchar(30)
CREATE TABLE _t_ghc (id bigint auto_increment primary key, hint varchar(64), value varchar(4096), unique key(hint))
INSERT INTO _t_ghc (hint,value) VALUES ('state','x')
INSERT IGNORE INTO _t_gho (id,aa,b,c) SELECT id,a,b,c FROM t FORCE INDEX (PRIMARY)
CREATE TABLE _t_del (id int auto_increment primary key) engine=InnoDB comment='ghost-cut-over-sentry'
DROP TABLE _t_del
RENAME TABLE t TO _t_del, _t_gho TO t
DROP TABLE _t_ghc
DROP TABLE _t_del
UPDATE t SET z=5 WHERE id=1

## own_shadow
usual
then
CREATE TABLE t_new LIKE t
ALTER TABLE t_new ADD z int DEFAULT 4
INSERT INTO t_new (id,a,b,c) SELECT id,a,b,c FROM t
RENAME TABLE t TO t_old, t_new TO t
UPDATE t SET z=9 WHERE id=1
DROP TABLE t_old

## alter_many
usual
then
ALTER TABLE t ADD x int DEFAULT 1, CHANGE b bb bigint, DROP c, RENAME TO t2, ADD KEY (x), COMMENT='y', ENGINE=InnoDB
INSERT INTO t2 VALUES (60,'a',5,6)
ALTER TABLE t2 RENAME AS t, ADD y int DEFAULT 2 FIRST
INSERT INTO t VALUES (1,61,'a',5,6)

## lock_clauses mariadb
usual
then
ALTER TABLE t ADD x int DEFAULT 1, LOCK=NONE, ALGORITHM=INPLACE
ALTER ONLINE TABLE t ADD y int DEFAULT 2
ALTER TABLE t WAIT 5 ADD z int DEFAULT 3
ALTER TABLE IF EXISTS t ADD COLUMN IF NOT EXISTS z int, ADD COLUMN IF NOT EXISTS w int DEFAULT 4
ALTER TABLE t DROP COLUMN IF EXISTS nope
INSERT INTO t (id) VALUES (60)

## views
usual
then
CREATE VIEW v AS SELECT * FROM t
INSERT INTO v VALUES (60,'v',1,NULL)
RENAME TABLE v TO v2
CREATE OR REPLACE VIEW v2 AS SELECT id FROM t
DROP VIEW v2
CREATE TABLE v2 (id int PRIMARY KEY)
INSERT INTO v2 VALUES (1)

## myisam
usual
then
CREATE TABLE m (id int PRIMARY KEY, a int) ENGINE=MyISAM
INSERT INTO m VALUES (1,1),(2,2)
UPDATE m SET a=5
ALTER TABLE m ENGINE=InnoDB
INSERT INTO m VALUES (3,3)

## blackhole
usual
then
ALTER TABLE t ENGINE=MEMORY
INSERT INTO t VALUES (60,'x',1,NULL)

## multi_table_dml
usual
CREATE TABLE u (id int PRIMARY KEY, z int)
INSERT INTO u VALUES (1,100),(2,200)
then
UPDATE t JOIN u ON t.id=u.id SET t.b=u.z, u.z=0
DELETE t,u FROM t JOIN u ON t.id=u.id WHERE t.id=2
REPLACE INTO t VALUES (1,'rep',1,NULL)
INSERT INTO t VALUES (1,'dup',1,NULL) ON DUPLICATE KEY UPDATE a='odku'
INSERT IGNORE INTO t VALUES (1,'i',1,NULL),(99,'i',1,NULL)

## key_moves
usual
then
UPDATE t SET id=id+10 ORDER BY id DESC
UPDATE t SET id=CASE id WHEN 11 THEN 112 WHEN 12 THEN 111 END WHERE id IN (11,12)
UPDATE t SET id=12 WHERE id=112

## insert_defaults
CREATE TABLE t (id int PRIMARY KEY, s varchar(9) DEFAULT 'dd', n int NOT NULL DEFAULT 7, m timestamp DEFAULT current_timestamp)
then
INSERT INTO t (id) VALUES (1)
INSERT INTO t () VALUES (2, DEFAULT, DEFAULT, DEFAULT)
INSERT INTO t (id,s) VALUES (3,'x')
UPDATE t SET s='y' WHERE id=1

## bits_years
CREATE TABLE t (id int PRIMARY KEY, b bit(5), y year)
INSERT INTO t VALUES (1,b'10101',2000),(2,NULL,NULL)
then
ALTER TABLE t MODIFY b bit(12)
INSERT INTO t VALUES (5,b'111111111111',2024)
ALTER TABLE t MODIFY y smallint
INSERT INTO t VALUES (6,b'1',-5)

## ts_dt
CREATE TABLE t (id int PRIMARY KEY, e datetime(3), f timestamp(3) NULL)
INSERT INTO t VALUES (1,'2024-01-02 03:04:05.678','2024-01-02 03:04:05.678')
then
SET time_zone='+03:00'
ALTER TABLE t MODIFY e timestamp(3) NULL, MODIFY f datetime(3)
INSERT INTO t VALUES (5,'2024-05-05','2024-05-05')

## prefix_key
CREATE TABLE t (a varchar(50) COLLATE utf8mb4_bin, b int, PRIMARY KEY (a))
INSERT INTO t VALUES ('AB',1)
then
INSERT INTO t VALUES ('ab',3)
UPDATE t SET b=5 WHERE a='AB'
INSERT INTO t VALUES ('é',3),('É ',4)

## blobkey
CREATE TABLE t (a blob, b int, PRIMARY KEY (a(10)))
INSERT INTO t VALUES ('abc',1),('def',2)
then
INSERT INTO t VALUES ('xyz',3)
UPDATE t SET b=9 WHERE a='abc'
DELETE FROM t WHERE a='def'

## ddl_procedure
usual
then
CREATE PROCEDURE pr() BEGIN ALTER TABLE t ADD x int DEFAULT 4; INSERT INTO t (id) VALUES (80); RENAME TABLE t TO t7; END
CALL pr()
PREPARE s FROM 'ALTER TABLE t7 ADD y int DEFAULT 5'
EXECUTE s
INSERT INTO t7 (id) VALUES (81)

## drop_create_fast
usual
then
DROP TABLE t
CREATE TABLE t (id int PRIMARY KEY, a varchar(20), b int, c datetime(3))
INSERT INTO t VALUES (1,'new',1,NULL)
DROP TABLE t
CREATE TABLE t (id bigint PRIMARY KEY, only_ int)
INSERT INTO t VALUES (5,6)
DROP TABLE t
CREATE TABLE t (k varchar(5) PRIMARY KEY)
INSERT INTO t VALUES ('kk')

## drop_several
usual
CREATE TABLE u (id int PRIMARY KEY)
then
DROP TABLE t, u
CREATE TABLE u (id int PRIMARY KEY)
INSERT INTO u VALUES (3)
DROP TABLE IF EXISTS nothing, u
CREATE TABLE IF NOT EXISTS u (id int PRIMARY KEY, x int)
INSERT INTO u VALUES (3,4)

## only_unique_add
usual
then
ALTER TABLE t ADD UNIQUE (b)
ALTER TABLE t ADD CONSTRAINT uu UNIQUE KEY (a)
INSERT INTO t VALUES (70,'uniq',7,NULL)
UPDATE t SET a='q' WHERE b=10

## long_varchar_pk
CREATE TABLE t (k varchar(10) PRIMARY KEY, b int)
INSERT INTO t VALUES ('ä',1),('b',2)
then
ALTER TABLE t MODIFY k varchar(200)
INSERT INTO t VALUES (repeat('k',150),2)
ALTER TABLE t MODIFY k varchar(200) CHARACTER SET latin1
UPDATE t SET b=5
INSERT INTO t VALUES ('é',9)

## check_con
usual
then
ALTER TABLE t ADD CONSTRAINT ck CHECK (b < 1000)
ALTER TABLE t ADD x int DEFAULT 5 CHECK (x > 0)
INSERT INTO t (id,x) VALUES (60,1)
ALTER TABLE t DROP CONSTRAINT ck, ADD y int DEFAULT 6
INSERT INTO t (id,x) VALUES (61,1)

## load_data
usual
then
SET @x=1
INSERT INTO t SELECT id+100, a, b, c FROM t
INSERT INTO t (id) SELECT 500 UNION SELECT 501

## default_change
usual
then
ALTER TABLE t ALTER b SET DEFAULT 42
INSERT INTO t (id) VALUES (50)
ALTER TABLE t ALTER COLUMN b DROP DEFAULT
INSERT INTO t (id,b) VALUES (51,1)
ALTER TABLE t MODIFY b int NOT NULL DEFAULT 3

## null_to_notnull
usual
then
SET sql_mode=''
ALTER TABLE t MODIFY a varchar(20) NOT NULL DEFAULT 'dflt', MODIFY b int NOT NULL DEFAULT 8
INSERT INTO t (id,a,b) VALUES (60,'','0')

## serial_text
usual
then
ALTER TABLE t MODIFY b text
INSERT INTO t (id,b) VALUES (60,'bb')
ALTER TABLE t MODIFY b varchar(5) CHARACTER SET ascii
ALTER TABLE t MODIFY a text, MODIFY c text

## vector mysql
CREATE TABLE t (id int PRIMARY KEY, v vector(3))
INSERT INTO t VALUES (1,to_vector('[1,2,3]'))
then
ALTER TABLE t ADD w vector(2)
INSERT INTO t VALUES (2,to_vector('[1,2,3]'),to_vector('[4,5]'))

## uuid_inet mariadb
CREATE TABLE t (u uuid PRIMARY KEY, i inet4, j inet6)
INSERT INTO t VALUES ('123e4567-e89b-12d3-a456-426614174001','1.1.1.1','::1')
then
INSERT INTO t VALUES (UUID(),'1.2.3.4','::2')
ALTER TABLE t ADD u2 uuid DEFAULT '123e4567-e89b-12d3-a456-426614174000', ADD i4 inet4 DEFAULT '9.9.9.9'
ALTER TABLE t MODIFY i varchar(20)
UPDATE t SET j='::9'

## explicit_ts_off
usual
then
SET sql_mode=''
CREATE TABLE n (id int PRIMARY KEY, a timestamp, b timestamp)
INSERT INTO n (id) VALUES (1)
ALTER TABLE t ADD x timestamp, ADD y timestamp
UPDATE t SET b=6 WHERE id=1

## nopad
usual
then
ALTER TABLE t MODIFY a char(10)
INSERT INTO t (id,a) VALUES (70,'pad   ')
SET sql_mode='PAD_CHAR_TO_FULL_LENGTH'
ALTER TABLE t MODIFY a varchar(10)
INSERT INTO t (id,a) VALUES (71,'pad   ')

## bin_attrs
CREATE TABLE t (id int PRIMARY KEY, b binary(4), v varbinary(9))
INSERT INTO t VALUES (1,'a','v'),(2,x'61000000',x'')
then
ALTER TABLE t MODIFY b binary(8)
INSERT INTO t VALUES (5,'ab',x'00')
ALTER TABLE t MODIFY b varbinary(8)
INSERT INTO t VALUES (6,'ab',x'00')
SET sql_mode=''
ALTER TABLE t MODIFY b binary(2)
ALTER TABLE t MODIFY v blob
